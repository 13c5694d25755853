# SPDX-License-Identifier: MIT
#
# What Engine::automatic takes longer than the best engine, over sequence length.

set title "Engine::automatic over the best engine: d = 64, m = 32, float, one core"
set xlabel "sequence length n"
set ylabel "ratio"
set yrange [0.8:1.8]
set xrange [56:150000]
eval "set xtics ".lengths

kinds = "dense T5 ALiBi 'no position'"
colours = "#0072b2 #009e73 #d55e00 #56b4e9"
measured = "using 1:($3 == 0 ? $2 : NaN)"
plot for [i=1:4] points index word(kinds, i).' bidirectional' @measured \
       with linespoints lw 2 pt 7 ps 0.7 lc rgb word(colours, i) title word(kinds, i), \
     for [i=1:4] points index word(kinds, i).' causal' @measured \
       with linespoints lw 2 dt 2 pt 6 ps 0.7 lc rgb word(colours, i) notitle, \
     NaN with lines lw 2 lc rgb '#444444' title 'bidirectional', \
     NaN with lines lw 2 dt 2 lc rgb '#444444' title 'causal', \
     1.2 with lines lw 1.5 lc rgb '#999999' title 'target: at most 1.2'
