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

def muster_fuzz_test(name, srcs, deps = [], **kwargs):
    """`name`_test: LLVMFuzzerTestOneInput of `srcs` (common/testing/fuzz.h) under seeded mutations for 20 seconds.
    `name`: the same under libFuzzer, which bench/fuzz.sh builds with clang."""
    muster_library(
        name = name + "_entry",
        testonly = True,
        srcs = srcs,
        alwayslink = True,
        deps = deps + ["//common/testing:fuzz"],
    )
    muster_test(
        name = name + "_test",
        size = "medium",
        deps = [":" + name + "_entry", "//common/testing:fuzz_test_main"],
        **kwargs
    )
    muster_binary(
        name = name,
        testonly = True,
        linkopts = ["-fsanitize=fuzzer"],
        tags = ["manual"],
        deps = [":" + name + "_entry"],
    )
