"""Our own C++ targets: the standard rules with warnings as errors, one translation unit a target.

Two thirds of the time to compile a small file go into reading headers, so the sources of a target are compiled together:
a generated file includes them all. `--define=apart=1` compiles file by file, to see that each includes what it uses.
"""

_WARNINGS = [
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unused-parameter",
    "-Wno-missing-field-initializers",
    "-Wnon-virtual-dtor",
    "-Woverloaded-virtual",
    "-Wno-subobject-linkage",  # what a generated file includes is not a header
]

# gRPC's reactors hide virtual functions of their own base classes.
REACTORS = ["-Wno-overloaded-virtual"]

# For commands that a user types: they wait for others and compute next to nothing. Takes two thirds of the time of -O2.
COMMAND_COPTS = ["-O1"]

def _as_one_unit(name, srcs, testonly):
    """What cc_library and cc_test take as (srcs, deps) for `srcs`."""
    files = [s for s in srcs if s.endswith(".cc") and not s.startswith(":")]
    others = [s for s in srcs if s not in files]
    if len(files) < 2:
        return srcs, []
    unit = name + ".unit.cc"
    lines = ["#include \"%s/%s\"" % (native.package_name(), f) for f in files]
    native.genrule(
        name = name + "_unit",
        outs = [unit],
        cmd = "printf '%%s\\n' %s > $@" % " ".join(["'%s'" % l for l in lines]),
        testonly = testonly,
    )
    native.cc_library(
        name = name + "_sources",
        textual_hdrs = files,
        testonly = testonly,
        visibility = ["//visibility:private"],
    )
    return others + select({
        "//build_defs:apart": files,
        "//conditions:default": [unit],
    }), [":%s_sources" % name]

# -O0 takes two thirds of the time. For tests and what only they link: what they test is optimized.
_TEST_COPTS = ["-O0"]

def muster_library(name, srcs = [], copts = [], deps = [], testonly = False, **kwargs):
    srcs, sources = _as_one_unit(name, srcs, testonly)
    native.cc_library(
        name = name,
        srcs = srcs,
        copts = _WARNINGS + (_TEST_COPTS if testonly else []) + copts,
        deps = deps + sources,
        testonly = testonly,
        **kwargs
    )

def muster_binary(name, srcs = [], copts = [], deps = [], testonly = False, **kwargs):
    srcs, sources = _as_one_unit(name, srcs, testonly)
    native.cc_binary(name = name, srcs = srcs, copts = _WARNINGS + copts, deps = deps + sources, testonly = testonly, **kwargs)

def muster_test(name, srcs = None, copts = [], deps = [], mostly_waits = False, timeout = "long", **kwargs):
    """A GoogleTest binary; gtest's main comes along. A time limit is there to end what hangs, it is no benchmark.

    A test that computes much on its own asks for more than _TEST_COPTS with `copts`. One that `mostly_waits`, for
    processes, deadlines or networks, runs beside others: Bazel reserves a part of a core by a test's size, 0.9 of one
    for a medium test and 0.4 for an enormous one."""
    srcs, sources = _as_one_unit(name, [name + ".cc"] if srcs == None else srcs, True)
    native.cc_test(
        name = name,
        size = "enormous" if mostly_waits else "medium",
        timeout = timeout,
        srcs = srcs,
        copts = _WARNINGS + _TEST_COPTS + copts,
        deps = deps + sources + ["//third_party/system:gtest_main"],
        **kwargs
    )

def muster_component(
        name,
        deps = [],
        folders = ["."],
        exclude = [],
        extra_srcs = [],
        copts = [],
        library_copts = [],
        test_deps = [],
        test_data = [],
        test_tags = [],
        test_shards = None,
        test_mostly_waits = False,
        **kwargs):
    """A folder: the library `name` of its sources and the test `name`_test of its *_test.cc, each one translation unit.

    `copts` are for both, `library_copts` for the library alone.
    Left to targets of their own: main.cc, *_fuzz.cc and what `exclude` names.
    Headers that end in _test.h and fixtures in *_test.cc belong to the tests.
    """
    prefixes = ["" if f == "." else f + "/" for f in folders]
    exclude = exclude + ["main.cc"]
    tests = native.glob([p + "*_test.cc" for p in prefixes] + [p + "*_test.h" for p in prefixes], exclude = exclude)
    muster_library(
        name = name,
        srcs = native.glob(
            [p + "*.cc" for p in prefixes],
            exclude = exclude + [p + "*_test.cc" for p in prefixes] + [p + "*_fuzz.cc" for p in prefixes],
        ) + extra_srcs,
        hdrs = native.glob([p + "*.h" for p in prefixes], exclude = exclude + [p + "*_test.h" for p in prefixes]),
        copts = copts + library_copts,
        deps = deps,
        **kwargs
    )
    if [t for t in tests if t.endswith(".cc")]:
        muster_test(
            name = name + "_test",
            srcs = tests,
            copts = copts,
            data = test_data,
            tags = test_tags,
            shard_count = test_shards,
            mostly_waits = test_mostly_waits,
            deps = [":" + name] + deps + test_deps,
        )

def muster_fuzz_test(name, deps = [], **kwargs):
    """`name`_test: LLVMFuzzerTestOneInput of `name`.cc (testing/fuzz.h) under seeded mutations for 3 seconds.
    `name`: the same under libFuzzer, which bench/fuzz.sh builds with clang."""
    native.cc_library(
        name = name + "_entry",
        testonly = True,
        srcs = [name + ".cc"],
        copts = _WARNINGS,  # optimized: it tries more inputs
        alwayslink = True,
        deps = deps + ["//testing"],
    )
    muster_test(
        name = name + "_test",
        srcs = [],
        deps = [":" + name + "_entry", "//testing:fuzz_test_main"],
        **kwargs
    )
    muster_binary(
        name = name,
        testonly = True,
        linkopts = ["-fsanitize=fuzzer"],
        tags = ["manual"],
        deps = [":" + name + "_entry"],
    )
