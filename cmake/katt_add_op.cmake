# katt_add_op(OP): the one registration of an operator, the folder src/ops/OP. The sources of its
# folder bench/ join the driver library, all others, of whatever folder, join katt_ops; the driver's generated
# registered_ops.cpp calls katt::OP::register_op. Its tests, tests/ops/test_OP*.cpp, are found by
# their names. A build that needs few operators says so: -DKATT_OPS="rope;rmsnorm".
#
# katt_add_op(OP ON OTHER…): the kernels of OP call those of other operators, which are added below it. A build of few
# operators then compiles their kernels too; the test structure.called_ops holds the lines against the objects.
#
# katt_add_op(OP AS NAME): sweeps and Python know the operator of the folder OP as NAME.
#
# katt_add_op(NAME DIR src/… NEEDS OP…): something above the operators that is swept like one, under its
# name or those after AS; its sources join katt_nn. It is left out where one of them is.
function(katt_add_op op)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "DIR" "NEEDS;ON;AS")
  get_property(called GLOBAL PROPERTY KATT_OPS_CALLED) # by the kernels of an operator that is built
  set(kernels_alone FALSE)
  if(KATT_OPS AND NOT op IN_LIST KATT_OPS)
    if(NOT op IN_LIST called)
      return()
    endif()
    set(kernels_alone TRUE)
  endif()
  set_property(GLOBAL APPEND PROPERTY KATT_OPS_CALLED ${arg_ON})
  get_property(added GLOBAL PROPERTY KATT_OPS)
  list(REMOVE_ITEM arg_NEEDS "" ${added})
  if(arg_NEEDS)
    message(STATUS "${op} left out: it needs the operators ${arg_NEEDS}")
    return()
  endif()
  set(dir ${PROJECT_SOURCE_DIR}/src/ops/${op})
  set(library KATT_OP_SOURCES)
  if(arg_DIR)
    set(dir ${PROJECT_SOURCE_DIR}/${arg_DIR})
    set(library KATT_OP_SOURCES_ABOVE)
    if(NOT arg_AS)
      set(arg_AS ${op})
    endif()
    list(JOIN arg_AS "," names)
    set_property(GLOBAL APPEND PROPERTY KATT_SWEPT ${arg_DIR}/bench:${names})
  elseif(arg_AS)
    set_property(GLOBAL APPEND PROPERTY KATT_SWEPT src/ops/${op}:${arg_AS})
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${dir}/*.cpp)
  file(GLOB bench CONFIGURE_DEPENDS ${dir}/bench/*.cpp)
  if(NOT bench)
    message(FATAL_ERROR "katt_add_op(${op}): ${dir}/bench has no *.cpp")
  endif()
  list(REMOVE_ITEM sources ${bench})
  set_property(GLOBAL APPEND PROPERTY ${library} ${sources})
  if(kernels_alone)
    return()
  endif()
  set_property(GLOBAL APPEND PROPERTY KATT_OPS ${op})
  set_property(GLOBAL APPEND PROPERTY KATT_OP_BENCH_SOURCES ${bench})
endfunction()

# katt_only_for(OP PATH VARIANT…): files of src/ops/OP whose path begins with PATH serve these variants alone, so that a
# change of one leaves the code of the other rows as it is (docs/published_results.md, "The code of a row").
function(katt_only_for op path)
  list(JOIN ARGN "," variants)
  set_property(GLOBAL APPEND PROPERTY KATT_ONLY_FOR ${op}:${path}:${variants})
endfunction()

# Writes the driver's registration source from the operators added so far.
function(katt_write_registered_ops file)
  get_property(ops GLOBAL PROPERTY KATT_OPS)
  set(declarations "")
  set(calls "")
  foreach(op ${ops})
    string(APPEND declarations
           "namespace katt::${op} {\nvoid register_op(katt::bench::Registry&);\n}\n")
    string(APPEND calls "  katt::${op}::register_op(registry);\n")
  endforeach()
  file(CONFIGURE OUTPUT ${file} @ONLY CONTENT [[
// Generated from the katt_add_op lines of src/ops/CMakeLists.txt.
#include "op/registry.hpp"

@declarations@
void katt::bench::register_builtin_ops(Registry& registry) {
@calls@}
]])
endfunction()
