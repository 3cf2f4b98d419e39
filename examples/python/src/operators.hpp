// The operators that are compiled for several instruction sets. Each of their files is compiled
// once for each set, whose name is then GDPO_INSTRUCTION_SET, and defines the list of its
// operators in the namespace of that name.
#pragma once
#include <torch/csrc/stable/library.h>

#include <cstdint>

#ifndef GDPO_INSTRUCTION_SET
#define GDPO_INSTRUCTION_SET baseline
#endif

/// An operator, as PyTorch calls it. A list of them ends with one without a name.
struct Operator {
  const char* name;
  void (*call)(StableIValue*, std::uint64_t, std::uint64_t);
};

// The lists, each in the file of its name.
#define GDPO_OPERATOR_LISTS extern const Operator losses[], advantages[], tokens[]
namespace baseline {  // for every processor of the architecture
GDPO_OPERATOR_LISTS;
}
namespace v3 {  // for x86-64-v3: AVX2 and FMA
GDPO_OPERATOR_LISTS;
}
namespace v4 {  // for x86-64-v4: AVX-512
GDPO_OPERATOR_LISTS;
}
#undef GDPO_OPERATOR_LISTS
