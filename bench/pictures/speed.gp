# SPDX-License-Identifier: MIT
#
# Forward time over sequence length, after figure 1(a) of Luo et al. 2021.

set title "Forward time of one head: d = 64, m = 32, float, one core"
set xlabel "sequence length n (hollow: extrapolated)"
set ylabel "milliseconds"
set logscale y 10
set format y '%g'
set xrange [56:150000]
eval "set xtics ".lengths

curves = "softmax fftw lanes automatic banded recurrence linear"
colours = "#222222 #e69f00 #0072b2 #cc79a7 #009e73 #d55e00 #56b4e9"
titles = "'exact softmax' 'dense, fftw' 'dense, lanes' 'dense, automatic' 'T5, banded' 'ALiBi, recurrence' 'no position (plain linear)'"
# dashed where another curve lies on it
plot for [i=1:7] points index word(curves, i) using 1:2 with lines lw 2.5 dt 1+(i==4) lc rgb word(colours, i) \
       title word(titles, i), \
     for [i=1:7] points index word(curves, i) using 1:($3 == 0 ? $2 : NaN) with points pt 7 ps 0.7 lc rgb word(colours, i) \
       notitle, \
     for [i=1:7] points index word(curves, i) using 1:($3 == 1 ? $2 : NaN) with points pt 6 ps 0.9 lc rgb word(colours, i) \
       notitle, \
     1.5e-5*x**2 with lines lw 1 dt 3 lc rgb '#888888' title 'slope 2', \
     4e-4*x with lines lw 1 dt 2 lc rgb '#888888' title 'slope 1'
