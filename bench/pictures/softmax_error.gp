# SPDX-License-Identifier: MIT
#
# Error against exact softmax over time: maps, numbers of features, near fields.

set title "Error at norm 1 over time: real heads, d = 32, time of one head of 8192 tokens"
set xlabel "milliseconds"
set ylabel "error against exact softmax in per cent"
set logscale y 10
set yrange [0.05:30]

curves = "'orthogonal' 'simplex' 'hyperbolic' 'orthogonal, near 32' 'Taylor' 'Taylor, near 32' 'calibrated' 'calibrated, near 16' 'calibrated, near 32' 'calibrated, near 64'"
colours = "#56b4e9 #0072b2 #009e73 #999999 #e69f00 #e69f00 #d55e00 #d55e00 #d55e00 #d55e00"
dashes = "1 1 1 2 1 2 1 4 2 3"
plot for [k=1:10] points index word(curves, k) using 1:2 \
       with linespoints lw 2 dt int(word(dashes, k)) pt 7 ps 0.6 lc rgb word(colours, k) title word(curves, k), \
     points index 'exact softmax' using 1:2 with lines lw 2 dt 2 lc rgb '#444444' title 'exact softmax'
