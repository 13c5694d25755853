# SPDX-License-Identifier: MIT
#
# SOURCE must not compile, and the compiler must say what stands behind "// expected: " in it; a SOURCE that expects
# nothing must compile.

file(STRINGS ${SOURCE} expected REGEX "^// expected: ")
separate_arguments(COMPILE UNIX_COMMAND "${COMPILE}")
execute_process(COMMAND ${COMPILE} ${SOURCE} RESULT_VARIABLE result OUTPUT_VARIABLE said ERROR_VARIABLE said)

if(NOT expected)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "does not compile:\n${said}")
  endif()
  return()
endif()
string(REPLACE "// expected: " "" expected "${expected}")
string(FIND "${said}" "${expected}" place)
if(result EQUAL 0)
  message(FATAL_ERROR "compiles, where it should not: ${expected}")
elseif(place EQUAL -1)
  message(FATAL_ERROR "expected the compiler to say: ${expected}\ngot:\n${said}")
endif()
