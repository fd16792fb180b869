// Fills the shared memory of a GPU for `debug`, so that a kernel that reads its own before it writes it reads this word.
extern "C" __global__ void fill_shared(const int word) {
  constexpr int n = 48 * 1024 / 4;  // the largest array of static size; several blocks fill a multiprocessor
  __shared__ volatile int words[n];
  for (int i = threadIdx.x; i < n; i += blockDim.x) words[i] = word;
}
