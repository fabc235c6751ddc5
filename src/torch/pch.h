// What every file here needs and what takes long to read.
#ifndef KOLO_TORCH_PCH_H_
#define KOLO_TORCH_PCH_H_

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#endif
