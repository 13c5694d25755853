# SPDX-License-Identifier: MIT
#
# README.md quotes the first example word for word, its programs for training and decoding compile, and the errors in its
# table of feature maps, and in that of bench/accuracy.md, are what the demo prints:
# cmake -D SOURCE=<dir> -D WORK=<dir> -D DEMO=<program> -D COMPILE=<command> -P readme.cmake

file(READ ${SOURCE}/README.md readme)
file(READ ${SOURCE}/bench/accuracy.md accuracy)
file(READ ${SOURCE}/examples/01_attention.cpp example)
string(REPLACE "// SPDX-License-Identifier: MIT\n\n" "" example "${example}")
string(FIND "${readme}" "```cpp\n${example}```" place)
if(place EQUAL -1)
  message(FATAL_ERROR "README.md does not quote examples/01_attention.cpp as it stands")
endif()

file(MAKE_DIRECTORY ${WORK})
separate_arguments(COMPILE UNIX_COMMAND "${COMPILE}")
# compiles the program of a section as the body of a function with these arguments
function(compile_section title arguments)
  string(REGEX MATCH "## ${title}\n+```cpp\n([^`]*)```" _ "${readme}")
  if(NOT CMAKE_MATCH_1)
    message(FATAL_ERROR "expected a program at the start of README.md's section ${title}")
  endif()
  string(MAKE_C_IDENTIFIER "${title}" name)
  file(WRITE ${WORK}/${name}.cpp "#include <nprf/nprf.hpp>

using namespace nprf;

void section(${arguments}) {
${CMAKE_MATCH_1}}
")
  execute_process(COMMAND ${COMPILE} ${WORK}/${name}.cpp COMMAND_ERROR_IS_FATAL ANY)
endfunction()

compile_section("Train with it" "Index heads, const float* q_data, HeadsView<const float> k, HeadsView<const float> v,
             HeadsView<float> y, HeadsView<const float> dy, HeadsView<float> dq, HeadsView<float> dk, HeadsView<float> dv")
compile_section("Decoding" "std::vector<AlibiPosition<float>> positions, std::vector<Index> lengths, HeadsView<const float> q,
             HeadsView<const float> k, HeadsView<const float> v, HeadsView<float> y, HeadsView<const float> next_q,
             HeadsView<const float> next_k, HeadsView<const float> next_v, HeadsView<float> next_y,
             std::vector<Index> best, std::ostream& out, std::istream& in")

# a page has to contain a text
function(expect_in page text)
  string(FIND "${${page}}" "${text}" place)
  if(place EQUAL -1)
    message(FATAL_ERROR "the table of ${page}: expected ${text}, as the demo prints")
  endif()
endfunction()

execute_process(COMMAND ${DEMO} --picture ${WORK}/demo.svg OUTPUT_VARIABLE output ERROR_QUIET COMMAND_ERROR_IS_FATAL ANY)
set(number " +([0-9]+\\.[0-9])")
foreach(map hyperbolic orf sphere prf trf)
  # three errors at the model's own norms, and three at norm 1
  if(NOT output MATCHES "\n${map}${number}${number}${number}${number}${number}${number}\n")
    message(FATAL_ERROR "the demo printed no errors of ${map}:\n${output}")
  endif()
  set(expected "| ${CMAKE_MATCH_4} | ${CMAKE_MATCH_5} | ${CMAKE_MATCH_6} |")
  if(NOT accuracy MATCHES "\n\\| `${map}(_prf)?` \\| 2?m ([^\n]*)\n")
    message(FATAL_ERROR "bench/accuracy.md has no row of ${map}")
  endif()
  string(FIND "${CMAKE_MATCH_2}" "${expected}" place)
  if(NOT place EQUAL 0)
    message(FATAL_ERROR "bench/accuracy.md's row of ${map}: expected ${expected}, as the demo prints, got ${CMAKE_MATCH_2}")
  endif()
endforeach()
if(NOT output MATCHES "\nmean of v${number}${number}\n")
  message(FATAL_ERROR "the demo printed no error of the mean of v:\n${output}")
endif()
expect_in(accuracy "mean of v | | ${CMAKE_MATCH_2} |")

# map, features, near, and the errors at norm 1 and at the model's own norms, in the words of both
set(error " +([0-9]+\\.[0-9]+)")
foreach(row "orf;32;0" "orf;128;0" "taylor;33;32" "calibrated;33;0" "calibrated;33;32" "calibrated;69;32" "calibrated;69;64")
  list(GET row 0 map)
  list(GET row 1 features)
  list(GET row 2 near)
  if(NOT output MATCHES "\n${map} +${features} +${near}${error}${error} ")
    message(FATAL_ERROR "the demo printed no errors of ${map} with ${features} features and near ${near}:\n${output}")
  endif()
  expect_in(readme "| ${features} | ${near} | ${CMAKE_MATCH_1} | ${CMAKE_MATCH_2} |")
endforeach()
if(NOT output MATCHES "\nbias alone, without q.k${error}${error}\n")
  message(FATAL_ERROR "the demo printed no error of the bias alone:\n${output}")
endif()
expect_in(readme "| bias alone, without q.k | | | ${CMAKE_MATCH_1} | ${CMAKE_MATCH_2} |")
if(NOT output MATCHES "\nmean of v${error}${error}\nexact softmax")
  message(FATAL_ERROR "the demo printed no error of the mean of v beside calibrated maps:\n${output}")
endif()
expect_in(readme "| mean of v | | | ${CMAKE_MATCH_1} | ${CMAKE_MATCH_2} |")
