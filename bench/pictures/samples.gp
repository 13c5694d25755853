# SPDX-License-Identifier: MIT
#
# How many random vectors an attention row needs, after figure 1(b) of Luo et al. 2021.

set title "An attention row's error: d = 64, 1024 keys, all of norm R"
set xlabel "random vectors m"
set ylabel "L1 distance from softmax's row, mean of draws"
set logscale y 10
set yrange [0.01:10]
set xtics (4, 8, 16, 32, 64, 128, 256, 512, 1024)

maps = "'PRF' 'orthogonal PRF' 'TRF' 'orthogonal hyperbolic'"
colours = "#0072b2 #56b4e9 #d55e00 #009e73"
# colour: the map; line: the radius
plot for [map=1:4] for [k=0:2] points index word(maps, map).', R = '.(2**k) using 1:2 \
       with linespoints lw 2 dt 1+k pt 7 ps 0.6 lc rgb word(colours, map) title (k == 0 ? word(maps, map) : ''), \
     for [k=0:2] points index 'uniform, R = '.(2**k) using 1:2 \
       with lines lw 1.5 dt 1+k lc rgb '#999999' title (k == 0 ? 'the mean of all values' : ''), \
     for [k=0:2] NaN with lines lw 2 dt 1+k lc rgb '#444444' title 'R = '.(2**k)
