# SPDX-License-Identifier: MIT
#
# The program in the README is the first example, word for word: cmake -D SOURCE=<dir> -P readme.cmake

file(READ ${SOURCE}/README.md readme)
file(READ ${SOURCE}/examples/01_attention.cpp example)
string(REPLACE "// SPDX-License-Identifier: MIT\n\n" "" example "${example}")
string(FIND "${readme}" "```cpp\n${example}```" place)
if(place EQUAL -1)
  message(FATAL_ERROR "README.md does not quote examples/01_attention.cpp as it stands")
endif()
