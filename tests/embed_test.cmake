# Installs what was built, builds examples/embed against it as a stranger would, and runs that.
# -DSOURCE= -DBUILD= -DWORK= -DCOMPILER= -DFLAGS=
file(REMOVE_RECURSE ${WORK})
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(failed)
    message(FATAL_ERROR "failed: ${ARGN}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix)
run(${CMAKE_COMMAND} -S ${SOURCE}/examples/embed -B ${WORK}/build -G Ninja -DCMAKE_PREFIX_PATH=${WORK}/prefix
    -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_CXX_FLAGS=${FLAGS})
run(${CMAKE_COMMAND} --build ${WORK}/build)
set(model ${SOURCE}/tests/data/stories260k)
run(${WORK}/build/embed ${model}/stories260K.bin "Once upon a time" ${model}/tokenizer.bin)
if(NOT output MATCHES "there was a little girl named")
  message(FATAL_ERROR "embed told another story: ${output}")
endif()
run(${WORK}/prefix/bin/fathom --version)
