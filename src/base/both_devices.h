// FATHOM_BOTH: functions that kernels of the CPU and of a GPU call.
#pragma once

#if defined(__CUDACC__)
#define FATHOM_BOTH __host__ __device__
#else
#define FATHOM_BOTH
#endif
