# With the CUDA backend a test runs on a device, which may be one in software (tests/with_device): Kokkos
# cannot start without one.
set(katt_test_launcher "")
if(KATT_CUDA)
  set(katt_test_launcher ${PROJECT_SOURCE_DIR}/tests/with_device ${PROJECT_BINARY_DIR})
elseif(CMAKE_CROSSCOMPILING)
  set(katt_test_launcher ${CMAKE_CROSSCOMPILING_EMULATOR})
endif()

# Under a sanitizer tests take several times as long: properties are tried on fewer problems, which are drawn again
# each time. OpenBLAS has threads of its own there.
set(katt_test_environment "")
set(katt_test_timeout 900)
if(KATT_SANITIZE)
  # A fault ends a program by a signal, as without a sanitizer.
  set(katt_test_environment "KATT_SANITIZE=${KATT_SANITIZE}" "OPENBLAS_NUM_THREADS=1" "RC_PARAMS=max_success=5"
      "ASAN_OPTIONS=abort_on_error=1")
  set(katt_test_timeout 3600)
elseif(CMAKE_CROSSCOMPILING) # and under an emulator
  set(katt_test_environment "RC_PARAMS=max_success=5")
  set(katt_test_timeout 3600)
endif()
# Under the thread sanitizer Clang's OpenMP tells it who waits for whom (archer), and threads are more than cores.
if(KATT_SANITIZE STREQUAL "thread")
  execute_process(
    COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libarcher.so
    OUTPUT_VARIABLE katt_archer
    OUTPUT_STRIP_TRAILING_WHITESPACE)
  execute_process(
    COMMAND ${CMAKE_CXX_COMPILER} -print-prog-name=llvm-symbolizer
    OUTPUT_VARIABLE katt_symbolizer
    OUTPUT_STRIP_TRAILING_WHITESPACE)
  list(
    APPEND
      katt_test_environment
      "OMP_TOOL_LIBRARIES=${katt_archer}"
      # Without the symbolizer no function has a name, and nothing is suppressed.
      "TSAN_OPTIONS=ignore_noninstrumented_modules=1:suppressions=${PROJECT_SOURCE_DIR}/tests/tsan.supp:external_symbolizer_path=${katt_symbolizer}"
      "OMP_NUM_THREADS=4")
endif()

# The properties that all tests have.
function(katt_test_properties name)
  set_tests_properties(
    ${name}
    PROPERTIES TIMEOUT ${katt_test_timeout}
               SKIP_RETURN_CODE 77
               LABELS "${ARGN}"
               # Several tests run at a time: threads that wait give way. Ranks of a test share a host: without the
               # networks that Open MPI looks for, they start in half the time (0.25 s for four).
               ENVIRONMENT "OMP_PROC_BIND=false;OMP_WAIT_POLICY=passive;OMPI_MCA_pml=ob1;OMPI_MCA_btl=^ofi,openib,tcp;OMPI_MCA_osc=^ucx;UBSAN_OPTIONS=print_stacktrace=1;${katt_test_environment}")
endfunction()

# katt_add_ranks(NAME COMMAND... RANKS COUNT...): a command under mpirun with so many ranks, as tests NAME.ranks_2 and so
# on, whatever the number of cores and whoever the user is.
function(katt_add_ranks name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "RANKS")
  if(NOT MPI_C_FOUND OR NOT MPIEXEC_EXECUTABLE)
    return()
  endif()
  set(launcher ${MPIEXEC_EXECUTABLE})
  execute_process(COMMAND ${launcher} --version OUTPUT_VARIABLE version ERROR_QUIET)
  if(version MATCHES "Open MPI|OpenRTE")
    list(APPEND launcher --allow-run-as-root --oversubscribe --bind-to none --mca mpi_yield_when_idle 1)
  endif()
  foreach(ranks ${arg_RANKS})
    add_test(NAME ${name}.ranks_${ranks}
             COMMAND ${katt_test_launcher} ${launcher} ${MPIEXEC_NUMPROC_FLAG} ${ranks} ${arg_UNPARSED_ARGUMENTS})
    katt_test_properties(${name}.ranks_${ranks} ranks)
    # Ranks wait for each other by asking again and again: beside other tests they take ten times as long.
    set_tests_properties(${name}.ranks_${ranks} PROPERTIES RUN_SERIAL ON COST 150)
    # MPI keeps memory that it allocates at its start.
    set_property(TEST ${name}.ranks_${ranks} APPEND PROPERTY ENVIRONMENT OMP_NUM_THREADS=1
                                                             ASAN_OPTIONS=detect_leaks=0)
  endforeach()
endfunction()

# katt_add_tests(PROGRAM SOURCES): the program test_PROGRAM of these sources, linked with the driver library and with
# tests/test_main.cpp (which starts Kokkos), and of each source tests/FOLDER/test_NAME.cpp a test FOLDER.NAME with the
# label FOLDER or, of test_device, device. Joined, sources compile in two fifths of the time (katt_join_sources; with
# CUDA katt_join_cuda_sources). A source's tests are those of the suites that it names; were one missed, it would run in
# the last test, PROGRAM.others.
function(katt_add_tests program sources)
  set(target test_${program})
  add_executable(${target} ${sources})
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  target_link_libraries(${target} PRIVATE katt_test_main)
  target_compile_definitions(${target} PRIVATE KATT_SOURCE_DIR="${PROJECT_SOURCE_DIR}") # the place of the cases
  if(NOT KATT_CUDA)
    katt_join_sources(${target})
  endif()
  katt_target_defaults(${target})
  katt_precompile(${target} REUSE_FROM katt_test_main)
  set(suite "(TEST|TEST_F|TEST_P|TYPED_TEST|RC_GTEST_PROP|INSTANTIATE_TYPED_TEST_SUITE_P)[(]([A-Za-z0-9]+)")
  set(known "")
  foreach(source ${sources})
    file(STRINGS ${source} lines REGEX "^${suite}")
    set(filter "")
    foreach(line ${lines})
      string(REGEX MATCH ${suite} line "${line}")
      list(APPEND filter "${CMAKE_MATCH_2}.*" "${CMAKE_MATCH_2}/*" "*/${CMAKE_MATCH_2}.*")
    endforeach()
    list(REMOVE_DUPLICATES filter)
    list(APPEND known ${filter})
    list(JOIN filter ":" filter)
    cmake_path(GET source STEM name)
    string(REGEX REPLACE "^test_" "" name ${name})
    cmake_path(GET source PARENT_PATH folder)
    cmake_path(GET folder FILENAME folder)
    set(arguments --gtest_brief=1 --gtest_filter=${filter})
    add_test(NAME ${folder}.${name} COMMAND ${katt_test_launcher} $<TARGET_FILE:${target}> ${arguments})
    if(program STREQUAL "device")
      set(label device)
    else()
      set(label ${folder})
    endif()
    katt_test_properties(${folder}.${name} ${label})
    if(program STREQUAL "ranks")
      katt_add_ranks(${folder}.${name} $<TARGET_FILE:${target}> ${arguments} RANKS 2 3 4 8)
    endif()
  endforeach()
  list(JOIN known ":" known)
  add_test(NAME ${program}.others COMMAND ${katt_test_launcher} $<TARGET_FILE:${target}>
                                          --gtest_brief=1 --gtest_filter=-${known})
  katt_test_properties(${program}.others ${label})
endfunction()

# katt_add_pytest(NAME DIRECTORY|FILE... [LABELS LABEL]): Python tests, run by the Python environment
# that scripts/build makes, with KATT set to the program's path.
function(katt_add_pytest name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "LABELS" "")
  set(python ${PROJECT_SOURCE_DIR}/build/venv/bin/python)
  if(NOT EXISTS ${python})
    message(STATUS "Test ${name} left out: no build/venv (scripts/build makes it)")
    return()
  endif()
  add_test(NAME ${name} COMMAND ${katt_test_launcher} ${python} -m pytest -q -p no:cacheprovider
                                ${arg_UNPARSED_ARGUMENTS})
  if(NOT arg_LABELS)
    set(arg_LABELS ${name})
  endif()
  katt_test_properties(${name} ${arg_LABELS})
  set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT KATT=$<TARGET_FILE:katt_program>
                                            KATT_BUILD_DIR=${PROJECT_BINARY_DIR}
                                            KATT_BACKEND=$<IF:$<BOOL:${KATT_CUDA}>,cuda,openmp>)
endfunction()

# katt_add_package_test(NAME DIRECTORY|FILE... [LABELS LABEL]): tests of the Python package, on the module of this build;
# skipped in a build without it, and where the files ask for a package that is not installed (pytest then finds no test
# and ends with 5). scripts/python tests what `pip install .` installs.
function(katt_add_package_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "LABELS" "")
  if(NOT arg_LABELS)
    set(arg_LABELS ${name})
  endif()
  if(NOT TARGET katt_python)
    add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -E echo
                                  "skipped: a build without KATT_PYTHON; scripts/python tests the package")
    set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "^skipped: " LABELS ${arg_LABELS})
    return()
  endif()
  add_test(NAME ${name} COMMAND ${katt_test_launcher} ${Python_EXECUTABLE} -m pytest -q -rs -p no:cacheprovider
                                ${arg_UNPARSED_ARGUMENTS})
  katt_test_properties(${name} ${arg_LABELS})
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 5)
  set(path ${PROJECT_BINARY_DIR}/python ${PROJECT_SOURCE_DIR}/drivers/report ${PROJECT_SOURCE_DIR}/drivers/peers)
  list(JOIN path ":" path)
  set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT PYTHONPATH=${path})
endfunction()
