# Run at every build: fills the commit and the dirty flag into TEMPLATE and rewrites OUTPUT only
# when they changed. Outside a git checkout of this very tree the commit is "unknown".
set(commit unknown)
set(dirty false)
find_program(GIT git)
if(GIT AND EXISTS ${SOURCE_DIR}/.git)
  execute_process(
    COMMAND ${GIT} -C ${SOURCE_DIR} rev-parse HEAD
    RESULT_VARIABLE result
    OUTPUT_VARIABLE head
    OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_QUIET)
  if(result EQUAL 0)
    set(commit ${head})
    # The files that decide over the program; results and notes may change without it.
    execute_process(
      COMMAND ${GIT} -C ${SOURCE_DIR} status --porcelain -- CMakeLists.txt CMakePresets.json cmake
              drivers/*.cpp drivers/*.hpp src
      OUTPUT_VARIABLE changes)
    if(NOT changes STREQUAL "")
      set(dirty true)
    endif()
  endif()
endif()
file(READ ${TEMPLATE} text)
string(REPLACE "%COMMIT%" ${commit} text "${text}")
string(REPLACE "%DIRTY%" ${dirty} text "${text}")
set(old "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT text STREQUAL old)
  file(WRITE ${OUTPUT} "${text}")
endif()
