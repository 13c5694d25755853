# SPDX-License-Identifier: MIT
#
# SOURCE must not compile, and the compiler must print what follows "// expected: " in it, and name each line that
# ends with "// refused". A SOURCE with flags of its own, behind "// flags: ", cannot use what is PARSED already.

file(STRINGS ${SOURCE} expected REGEX "^// expected: ")
file(STRINGS ${SOURCE} flags REGEX "^// flags: ")
if(flags)
  string(REPLACE "// flags: " "" flags "${flags}")
else()
  set(flags "-include ${PARSED}")
endif()
separate_arguments(COMPILE UNIX_COMMAND "${COMPILE} ${flags}")
execute_process(COMMAND ${COMPILE} ${SOURCE} RESULT_VARIABLE result OUTPUT_VARIABLE said ERROR_VARIABLE said)

string(REPLACE "// expected: " "" expected "${expected}")
if(NOT expected)
  message(FATAL_ERROR "expected a line that starts with '// expected: '")
endif()
string(FIND "${said}" "${expected}" place)
if(result EQUAL 0)
  message(FATAL_ERROR "compiles, where it should not: ${expected}")
elseif(place EQUAL -1)
  message(FATAL_ERROR "expected from the compiler: ${expected}\ngot:\n${said}")
endif()

file(READ ${SOURCE} text)
string(REGEX REPLACE "[][;]" " " text "${text}") # which CMake's lists take for their own
string(REPLACE "\n" ";" lines "${text}")
set(number 0)
cmake_path(GET SOURCE FILENAME name)
foreach(line IN LISTS lines)
  math(EXPR number "${number} + 1")
  if(line MATCHES "// refused$" AND NOT said MATCHES "/${name}:${number}:[0-9]+:( error:|   required from here| note: in instantiation of )")
    message(FATAL_ERROR "expected line ${number} to be refused: ${line}\ngot:\n${said}")
  endif()
endforeach()
