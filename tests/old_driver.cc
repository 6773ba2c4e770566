// A stand-in for libcuda.so.1: an NVIDIA driver that is older than the toolkit. cuda_driver_test.py puts it
// before the real one.
extern "C" int cuInit(unsigned) {
  return 0;
}

extern "C" int cuDriverGetVersion(int* version) {
  *version = 11040;
  return 0;
}
