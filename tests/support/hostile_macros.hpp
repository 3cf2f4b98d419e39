// The macros that a translation unit has after windows.h (without NOMINMAX), complex.h and
// sys/sysmacros.h. They are defined after the standard, Eigen and JSON headers that gdpo's headers
// include, because they would break those.
#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <climits>
#include <cmath>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <type_traits>
#include <unsupported/Eigen/CXX11/Tensor>
#include <utility>
#include <variant>
#include <vector>
#ifdef _OPENMP
#include <omp.h>
#endif

// windows.h
#define min(a, b) (((a) < (b)) ? (a) : (b))
#define max(a, b) (((a) > (b)) ? (a) : (b))
#define near
#define far
#define small char
#define interface struct
#define IN
#define OUT
#define OPTIONAL
#define ERROR 0
#define ABSOLUTE 1
#define RELATIVE 2
// complex.h
#define I (__extension__ 1.0iF)
#define complex _Complex
// sys/sysmacros.h
#define major(dev) ((dev) >> 8)
#define minor(dev) ((dev)&0xff)
