// How long a GPU has nothing to do because the host waits for a count of rows. Implemented in cuda_counts.cu.
#pragma once

namespace fathom {

struct CudaHandle;

void cuda_measure_idle(CudaHandle& handle);  // from now on
// Seconds since then, and measures no longer. Waits for the device.
double cuda_idle_seconds(CudaHandle& handle);

}  // namespace fathom
