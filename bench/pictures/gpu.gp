# SPDX-License-Identifier: MIT
#
# Forward time on a GPU over sequence length, after figure 1(a) of Luo et al. 2021.

set title "Forward time of one head on a GPU: d = 64, m = 32"
set xlabel "sequence length n"
set ylabel "milliseconds"
set logscale y 10
set format y '%g'
set xrange [900:300000]
set xtics ('1k' 1024, '2k' 2048, '4k' 4096, '8k' 8192, '16k' 16384, '32k' 32768, '64k' 65536, '128k' 131072, '256k' 262144)
set key top left

# dashed: bfloat16
names = "exact sdpa flex paper dense_float dense_bf16 t5_float t5_bf16"
titles = "'exact softmax, fp32' 'SDPA, bf16' 'FlexAttention, bf16' 'torch.fft, fp32' 'nprf, dense, float' 'nprf, dense, bf16' 'nprf, T5, float' 'nprf, T5, bf16'"
colours = "#222222 #222222 #999999 #e69f00 #0072b2 #0072b2 #009e73 #009e73"
dashes = "1 2 2 1 1 2 1 2"
plot for [i=1:words(names)] points index word(names, i) using 1:2 with linespoints lw 2.5 dt 0+word(dashes, i) pt 7 ps 0.7 \
       lc rgb word(colours, i) title word(titles, i)
