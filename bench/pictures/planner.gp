# SPDX-License-Identifier: MIT
#
# What Engine::automatic takes longer than the best engine, over sequence length.

set title "Engine::automatic over the best engine: d = 64, m = 32, float, one core"
set xlabel "sequence length n"
set ylabel "ratio"
set yrange [0.8:2]
set xrange [56:150000]
eval "set xtics ".lengths
set key top right maxcols 2 maxrows 5

kinds = "dense T5 ALiBi 'no position'"
colours = "#0072b2 #009e73 #d55e00 #56b4e9"
measured = "using 1:($3 == 0 ? $2 : NaN)"
plot for [i=1:4] points index word(kinds, i).' bidirectional' @measured with linespoints lw 2 pt 7 ps 0.7 lc rgb word(colours, i) \
       title word(kinds, i).' bidirectional', \
     for [i=1:4] points index word(kinds, i).' causal' @measured with linespoints lw 2 dt 2 pt 6 ps 0.7 lc rgb word(colours, i) \
       title word(kinds, i).' causal', \
     1.2 with lines lw 1.5 lc rgb '#888888' title 'target: at most 1.2'
