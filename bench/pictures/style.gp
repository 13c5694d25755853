# SPDX-License-Identifier: MIT
#
# What all pictures share. gnuplot -e "points='X.dat'; picture='X.svg'" style.gp X.gp

set terminal svg size 1080,600 dynamic background rgb 'white' font 'sans-serif,15' name 'nprf'
set output picture
set grid xtics ytics lc rgb '#dddddd' lw 1 lt 1
set border 3 lc rgb '#444444'
set tics nomirror
set logscale x 2
set key outside right top reverse Left samplen 3 spacing 1.15

lengths = "(64, 128, 256, 512, '1k' 1024, '2k' 2048, '4k' 4096, '8k' 8192, '16k' 16384, '32k' 32768, '64k' 65536, '128k' 131072)"
