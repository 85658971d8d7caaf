"""muster_model: a library with a model for Muster (docs/custom_models.md)."""

def muster_model(name, srcs, deps = [], copts = [], linkopts = [], sdk = "//sdk", **kwargs):
    """Builds lib<name>.so. LibTorch comes with `sdk`, whose repository says where the wheel is."""
    native.cc_binary(
        name = "lib%s.so" % name,
        srcs = srcs,
        copts = copts + ["-fvisibility=hidden"],
        linkopts = linkopts,
        linkshared = True,
        deps = deps + [sdk],
        **kwargs
    )
