# katt_add_code(TARGET): a library with the source that write_code.py makes of the objects of the others and of what the
# compiler read for them. It is a library of its own, linked after them, since no library can name its own objects.
function(katt_add_code target)
  set(source ${PROJECT_BINARY_DIR}/generated/code.cpp)
  get_property(only GLOBAL PROPERTY KATT_ONLY_FOR)
  get_property(swept GLOBAL PROPERTY KATT_SWEPT)
  find_package(Python3 3.9 COMPONENTS Interpreter)
  if(Python3_FOUND AND CMAKE_NM)
    set(tokens ${PROJECT_SOURCE_DIR}/drivers/report/katt_report/published/cpp_tokens.py)
    set(objects "")
    foreach(library katt_ops katt_ranks katt_nn katt_driver)
      string(APPEND objects "$<JOIN:$<TARGET_OBJECTS:${library}>,\n>\n")
    endforeach()
    file(GENERATE OUTPUT ${source}.objects CONTENT "${objects}")
    add_custom_command(
      OUTPUT ${source}
      COMMAND
        ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/cmake/write_code.py --source ${PROJECT_SOURCE_DIR} --build
        ${CMAKE_BINARY_DIR} --objects ${source}.objects --nm ${CMAKE_NM} -o ${source} --only ${only} --swept ${swept}
      DEPENDS katt_ops katt_ranks katt_nn katt_driver ${source}.objects ${PROJECT_SOURCE_DIR}/cmake/write_code.py ${tokens}
      COMMENT "Naming the code of every variant"
      VERBATIM)
  else()
    message(STATUS "Rows of sweeps will not name their code: that needs Python 3.9 and nm")
    file(CONFIGURE OUTPUT ${source} @ONLY CONTENT [[
#include "op/code.hpp"

katt::bench::CodeTable katt::bench::impl::code_table() { return {}; }
]])
  endif()
  add_library(${target} STATIC ${source})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_compile_features(${target} PRIVATE cxx_std_20)
endfunction()
