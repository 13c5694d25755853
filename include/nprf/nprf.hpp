// SPDX-License-Identifier: MIT
#pragma once

/// The umbrella header: all public headers of nprf except nprf/cuda.hpp.

#include "nprf/attention/attention.hpp"
#include "nprf/attention/heads_view.hpp"
#include "nprf/attention/multi_head_attention.hpp"
#include "nprf/config.hpp"
#include "nprf/core/cpu_level.hpp"
#include "nprf/core/threads.hpp"
#include "nprf/feature_map/balance.hpp"
#include "nprf/feature_map/centred.hpp"
#include "nprf/feature_map/elu.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/feature_map/positive.hpp"
#include "nprf/feature_map/taylor.hpp"
#include "nprf/feature_map/trigonometric.hpp"
#include "nprf/instances.hpp"
#include "nprf/levels.hpp"
#include "nprf/position/alibi.hpp"
#include "nprf/position/grid.hpp"
#include "nprf/position/position.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/position/resize_bias.hpp"
#include "nprf/position/t5.hpp"
#include "nprf/reference/kernelized_attention.hpp"
#include "nprf/reference/softmax_attention.hpp"
#include "nprf/toeplitz/contract.hpp"
