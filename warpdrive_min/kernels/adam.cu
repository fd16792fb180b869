// A step of Adam on a GPU: sums of squares for the gradient's norm, then the step.
//
// Vectors, one for each member of a population, are contiguous. Each has N_BLOCKS blocks of THREADS threads, one vector
// after the other.

__device__ float sum_of_block(const float x) {  // in a fixed order
  __shared__ float sums[THREADS];
  const int me = threadIdx.x;
  sums[me] = x;
  for (int half = THREADS / 2; half > 0; half /= 2) {
    __syncthreads();
    if (me < half) sums[me] += sums[me + half];
  }
  __syncthreads();
  return sums[0];
}

// Writes each block's sum of squares of `gradient` (vectors, n) into `partial` (vectors, N_BLOCKS + 1). The count of steps
// is copied behind the sums: `take_step` reads it there, because its first block changes `step` before others may have
// read it.
extern "C" __global__ void add_squares(const float* gradient, const float* step, float* partial, int n) {
  const int vector = blockIdx.x / N_BLOCKS, block = blockIdx.x % N_BLOCKS;
  const float* const own = gradient + static_cast<long long>(vector) * n;
  float sum = 0.f;
  for (int k = block * THREADS + threadIdx.x; k < n; k += N_BLOCKS * THREADS) sum += own[k] * own[k];
  sum = sum_of_block(sum);
  float* const to = partial + vector * (N_BLOCKS + 1);
  if (threadIdx.x == 0) to[block] = sum;
  if (threadIdx.x == 0 && block == 0) to[N_BLOCKS] = step[vector];
}

// Updates parameters by the clipped gradient. The gradient's norm is clipped to its limit if that is positive. If the norm
// is not finite or `skip` is set, only `norm` is written. `n_skipped` counts the steps whose norm is not finite.
//
// Source: Kingma and Ba 2015, "Adam: a method for stochastic optimization", algorithm 1.
extern "C" __global__ void take_step(float* parameters, const float* gradient, float* exp_avg, float* exp_avg_sq, float* step,
                          float* norm, float* n_skipped, const float* lr, const bool* skip, const float* max_norm,
                          const float* partial, int n, float eps, float almost_zero, float rest1, float beta2, float rest2,
                          double log_beta1, double log_beta2) {
  const int vector = blockIdx.x / N_BLOCKS, block = blockIdx.x % N_BLOCKS;
  const float* const sums = partial + vector * (N_BLOCKS + 1);
  float sum = 0.f;
  for (int k = threadIdx.x; k < N_BLOCKS; k += THREADS) sum += sums[k];
  const float length = sqrtf(sum_of_block(sum)), done = sums[N_BLOCKS] + 1.f;
  const bool is_finite = length <= 3.402823466e38f;
  if (block == 0 && threadIdx.x == 0) {
    norm[vector] = length;
    if (!skip[vector]) (is_finite ? step[vector] : n_skipped[vector]) += 1.f;
  }
  if (!is_finite || skip[vector]) return;
  __shared__ float of_step[2];
  if (threadIdx.x == 0) {  // in float32, 1 - beta^step would have few correct digits in the first steps
    of_step[0] = static_cast<float>(lr[vector] / (1. - exp(log_beta1 * done)));
    of_step[1] = static_cast<float>(sqrt(1. - exp(log_beta2 * done)));
  }
  __syncthreads();
  const float rate = of_step[0], bias = of_step[1], most = max_norm[vector];
  const float by = most > 0.f ? fmaxf((length + almost_zero) / most, 1.f) : 1.f;
  for (int k = block * THREADS + threadIdx.x; k < n; k += N_BLOCKS * THREADS) {
    const long long at = static_cast<long long>(vector) * n + k;
    const float slope = gradient[at] / by, mean = exp_avg[at] + rest1 * (slope - exp_avg[at]);
    const float square = beta2 * exp_avg_sq[at] + rest2 * slope * slope;
    exp_avg[at] = mean;
    exp_avg_sq[at] = square;
    parameters[at] -= rate * mean / (sqrtf(square) / bias + eps);
  }
}
