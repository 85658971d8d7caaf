"""muster_protos: .proto files to one C++ library, with Debian's protoc (and its gRPC plug-in for services)."""

_REPEATED = ["schemas", "file_default_instances"]

_HEADERS = ["descriptor", "extension_set", "generated_message_reflection", "io/coded_stream", "reflection_ops", "wire_format", "wire_format_lite"]

def muster_protos(name, srcs, deps = [], grpc = False, **kwargs):
    """Compiles `srcs` as one translation unit; deps are the muster_protos targets that they import."""
    ends = [".pb", ".grpc.pb"] if grpc else [".pb"]
    stems = [s[:-len(".proto")] + e for s in srcs for e in ends]
    cmd = "protoc -I. --cpp_out=$(GENDIR)"
    if grpc:
        cmd += " --grpc_out=additional_header_includes=common/rpc/message_limits.h:$(GENDIR) --plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin"
    cmd += " " + " ".join(["proto/" + s for s in srcs])

    # The package is muster.v1; in C++ its messages are muster::Job and so on, without the version.
    for s in srcs:
        cmd += " && echo 'namespace muster { using namespace v1; }' >> $(GENDIR)/proto/%s.pb.h" % s[:-len(".proto")]
    # Two names stand in every generated file. Headers come first, so that the macros change nothing else.
    headers = ["proto/%s.h" % s for s in stems] + ["google/protobuf/%s.h" % h for h in _HEADERS]
    lines = ["#include \"%s\"" % h for h in headers]
    for s in stems:
        id = s.replace(".", "_")
        lines += ["#define %s %s_%s" % (n, id, n) for n in _REPEATED]
        lines += ["#include \"proto/%s.cc\"" % s]
        lines += ["#undef %s" % n for n in _REPEATED]
    cmd += " && printf '%%s\\n' %s > $(GENDIR)/proto/%s.unit.cc" % (" ".join(["'%s'" % l for l in lines]), name)
    native.filegroup(name = name + "_proto", srcs = srcs + [d + "_proto" for d in deps], visibility = ["//visibility:public"])
    native.genrule(
        name = name + "_gen",
        srcs = [":" + name + "_proto"],
        outs = [s + ".h" for s in stems] + [s + ".cc" for s in stems] + [name + ".unit.cc"],
        cmd = cmd,
    )
    native.cc_library(
        name = name,
        srcs = [name + ".unit.cc"],
        hdrs = [s + ".h" for s in stems],
        textual_hdrs = [s + ".cc" for s in stems],
        alwayslink = grpc,  # reflection finds services by their descriptors, which nothing else refers to
        deps = deps + (["//common/rpc:message_limits", "//third_party/system:grpc"] if grpc else ["//third_party/system:protobuf"]),
        **kwargs
    )
