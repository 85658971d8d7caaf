# find_package(muster-sdk): the headers of libmuster-sdk, LibTorch, and
#
#   muster_add_model(NAME SOURCE...)
#
# which builds libNAME.so, a library with a MUSTER_MODEL (muster/model.h) that Muster's trainers load. LibTorch is found
# by its own package: add its folder (of a wheel: site-packages/torch) to CMAKE_PREFIX_PATH. It must be of the version
# of the trainer's, which refuses another one.
include(CMakeFindDependencyMacro)
find_dependency(Torch)

get_filename_component(_muster_sdk_include "${CMAKE_CURRENT_LIST_DIR}/../../../include" ABSOLUTE)
if(NOT EXISTS "${_muster_sdk_include}/muster/model.h")
  set(muster-sdk_FOUND FALSE)
  set(muster-sdk_NOT_FOUND_MESSAGE "there is no ${_muster_sdk_include}/muster/model.h: install the SDK again")
  return()
endif()

if(NOT TARGET muster::sdk)
  add_library(muster::sdk INTERFACE IMPORTED)
  set_target_properties(muster::sdk PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${_muster_sdk_include}"
    INTERFACE_COMPILE_FEATURES cxx_std_20
    INTERFACE_LINK_LIBRARIES "${TORCH_LIBRARIES}")
endif()

function(muster_add_model name)
  add_library(${name} MODULE ${ARGN})
  set_target_properties(${name} PROPERTIES
    PREFIX "lib" CXX_VISIBILITY_PRESET hidden CXX_EXTENSIONS OFF)
  target_link_libraries(${name} PRIVATE muster::sdk)
  # Its C++ ABI: TORCH_CXX_FLAGS names LibTorch's.
  separate_arguments(flags UNIX_COMMAND "${TORCH_CXX_FLAGS}")
  target_compile_options(${name} PRIVATE ${flags})
endfunction()
