# SPDX-License-Identifier: MIT
#
# SOURCE must not compile, and the compiler must say what stands behind "// expected: " in it; a SOURCE that expects
# nothing must compile. One with flags of its own, behind "// flags: ", cannot use what is PARSED already.

file(STRINGS ${SOURCE} expected REGEX "^// expected: ")
file(STRINGS ${SOURCE} flags REGEX "^// flags: ")
if(flags)
  string(REPLACE "// flags: " "" flags "${flags}")
else()
  set(flags "-include ${PARSED}")
endif()
separate_arguments(COMPILE UNIX_COMMAND "${COMPILE} ${flags}")
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
