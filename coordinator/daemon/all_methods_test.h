// Every method of every service, found by reflection, so that tests cover new methods automatically.
#pragma once

#include <google/protobuf/descriptor.h>

#include <vector>

#include "proto/jobs_service.grpc.pb.h"
#include "proto/trust_service.grpc.pb.h"
#include "proto/workers_service.grpc.pb.h"

namespace muster::server {

inline std::vector<const google::protobuf::MethodDescriptor*> AllMethods() {
  Jobs::Service jobs;  // links the descriptors in
  Workers::Service workers;
  Trust::Service trust;
  std::vector<const google::protobuf::MethodDescriptor*> methods;
  for (const char* name : {"proto/jobs_service.proto", "proto/workers_service.proto", "proto/trust_service.proto"}) {
    const google::protobuf::FileDescriptor* file =
        google::protobuf::DescriptorPool::generated_pool()->FindFileByName(name);
    for (int s = 0; file != nullptr && s < file->service_count(); ++s) {
      for (int m = 0; m < file->service(s)->method_count(); ++m) methods.push_back(file->service(s)->method(m));
    }
  }
  return methods;
}

}  // namespace muster::server
