// Launches the programs of row_programs.h, llama_programs.h and adamw_program.h on a GPU.
//
//   const char* error = Launch(Norm<float, Bf16>{...}, stream);
#pragma once

namespace muster::units::programs {

// Enqueues `program` on `stream`, a cudaStream_t of the current device. Returns null, or what CUDA says is wrong with
// the launch or with an earlier kernel. launch.cu has every program in fp32 arithmetic; its grid must not be empty.
template <typename Program>
const char* Launch(const Program& program, void* stream);

}  // namespace muster::units::programs
