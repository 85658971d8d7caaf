"""muster_proto: one .proto file to a C++ library, with Debian's protoc (and its gRPC plug-in for services)."""

def muster_proto(name, deps = [], grpc = False, **kwargs):
    """Compiles `name`.proto; deps are the muster_proto targets that it imports."""
    src = name + ".proto"
    outs = [name + ".pb.h", name + ".pb.cc"]
    cmd = "protoc -I. --cpp_out=$(GENDIR)"
    if grpc:
        outs += [name + ".grpc.pb.h", name + ".grpc.pb.cc"]
        cmd += " --grpc_out=$(GENDIR) --plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin"
    # The package is muster.v1; in C++ its messages are muster::Job and so on, without the version.
    cmd += " proto/" + src + " && echo 'namespace muster { using namespace v1; }' >> $(GENDIR)/proto/" + name + ".pb.h"
    native.filegroup(name = name + "_proto", srcs = [src] + [d + "_proto" for d in deps], visibility = ["//visibility:public"])
    native.genrule(name = name + "_gen", srcs = [":" + name + "_proto"], outs = outs, cmd = cmd)
    native.cc_library(
        name = name,
        srcs = [o for o in outs if o.endswith(".cc")],
        hdrs = [o for o in outs if o.endswith(".h")],
        alwayslink = grpc,  # reflection finds services by their descriptors, which no symbol references
        deps = deps + ["//third_party/system:grpc" if grpc else "//third_party/system:protobuf"],
        **kwargs
    )
