// What every file here needs of torch.
#pragma once

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
