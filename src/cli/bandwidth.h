#pragma once

#include "base/thread_pool.h"

namespace fathom {

// How many bytes a second the pool's threads can read from memory together: the best of a few passes over a
// buffer that no cache holds. Each thread reads four streams at once, as the kernels read rows of weights:
// with one, this is a quarter less.
double read_bandwidth(ThreadPool& pool);

}  // namespace fathom
