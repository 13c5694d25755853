# SPDX-License-Identifier: MIT
#
# gnuplot -e "points='speed.dat'; picture='speed.svg'" figure.gp
# Forward time over sequence length, after figure 1(a) of Luo et al. 2021.

set terminal svg size 860,600 dynamic background rgb 'white' font 'sans-serif,15'
set output picture

set title "Forward time of one head: d = 64, float, one core, a bias for every lag"
set xlabel "sequence length n"
set ylabel "milliseconds"
set logscale x 2
set logscale y 10
set xrange [220:38000]
set xtics (256, 512, '1k' 1024, '2k' 2048, '4k' 4096, '8k' 8192, '16k' 16384, '32k' 32768)
set format y '%g'
set grid xtics ytics lc rgb '#dddddd' lw 1 lt 1
set border 3 lc rgb '#444444'
set tics nomirror
set key top left reverse Left samplen 3 spacing 1.15

# colour: the number of random vectors; line: the engine
few = '#56b4e9'; middle = '#0072b2'; many = '#7b3294'
plot points index 'softmax_attention' with linespoints lw 3   pt 7 ps 0.7 lc rgb '#222222' title 'exact softmax', \
     points index 'direct m=16' with linespoints lw 1.5 pt 6 ps 0.7 dt 2 lc rgb few    title 'direct, m = 16', \
     points index 'direct m=32' with linespoints lw 1.5 pt 6 ps 0.7 dt 2 lc rgb middle title 'direct, m = 32', \
     points index 'direct m=64' with linespoints lw 1.5 pt 6 ps 0.7 dt 2 lc rgb many   title 'direct, m = 64', \
     points index 'fftw m=16'   with linespoints lw 2.5 pt 7 ps 0.7 lc rgb few    title 'FFTW, m = 16', \
     points index 'fftw m=32'   with linespoints lw 2.5 pt 7 ps 0.7 lc rgb middle title 'FFTW, m = 32', \
     points index 'fftw m=64'   with linespoints lw 2.5 pt 7 ps 0.7 lc rgb many   title 'FFTW, m = 64'
