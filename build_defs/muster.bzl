"""Our own C++ targets: the standard rules with warnings as errors."""

WARNINGS = [
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unused-parameter",
    "-Wno-missing-field-initializers",
    "-Wnon-virtual-dtor",
    "-Woverloaded-virtual",
]

def muster_library(name, copts = [], **kwargs):
    native.cc_library(name = name, copts = WARNINGS + copts, **kwargs)

def muster_binary(name, copts = [], **kwargs):
    native.cc_binary(name = name, copts = WARNINGS + copts, **kwargs)

def muster_test(name, copts = [], deps = [], size = "small", **kwargs):
    """A GoogleTest binary; gtest's main comes along."""
    native.cc_test(name = name, size = size, copts = WARNINGS + copts, deps = deps + ["//third_party/system:gtest_main"], **kwargs)
