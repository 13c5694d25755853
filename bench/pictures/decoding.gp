# SPDX-License-Identifier: MIT
#
# Time of the next token over the number of tokens before it.

set title "Time of the next token of one head: d = 64, float, one core"
set xlabel "tokens before it"
set ylabel "microseconds"
set logscale y 10
set format y '%g'
set xrange [224:150000]
eval "set xtics ".lengths

positions = "T5 ALiBi dense"
maps = "orf Taylor"
colours = "#009e73 #d55e00 #0072b2"
# colour: the position; line: the map
plot points index 'softmax' using 1:2 with linespoints lw 2.5 pt 7 ps 0.6 lc rgb '#222222' title 'exact softmax, cache', \
     for [p=1:3] for [k=1:2] points index word(positions, p).', '.word(maps, k) using 1:2 \
       with linespoints lw 2 dt k pt 7 ps 0.6 lc rgb word(colours, p) \
       title word(positions, p).(k == 1 ? ', 32 features' : ', Taylor (65)')
