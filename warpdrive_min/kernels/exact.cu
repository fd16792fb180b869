// Training in one order: layers of networks, their gradients, sums over rows, normalisation and Adam.
//
// Each number is a chain of operations that IEEE 754 rounds in one way only, and the order of the chain follows from
// sizes alone. So results are bit-identical on every GPU and CPU, for any number of threads. A product is
// added by `fmaf`, which rounds once everywhere; nothing else is contracted.
//
//   linear           out[r][o]    = act(bias[o] + sum over i of x[r][i] w[o][i]), i = 0, 1, 2, ...
//   linear_inputs    d_x[r][i]    = (sum over o of d_out[r][o] w[o][i]) slope(x[r][i]), o = 0, 1, 2, ...
//   linear_weights   parts[p][o][i] = sum over the rows r of part p, in order, of d_out[r][o] x[r][i]
//   part_sums        parts[p][c]  = sum over the rows r of part p, in order, of x[r][c]
//   add_parts        out[m]       = sum over p, in order, of parts[p][m]
//
// Arrays are row-major and without gaps. An item is a number of the result. A GPU thread computes one; on the CPU up to
// LANES neighbours of a row are computed at once, in SIMD.

constexpr int RELU = 1, TANH = 2;  // else nothing

#if defined(__CUDACC__)
constexpr int LANES = 1;
#else
constexpr int LANES = 64;
#endif

struct Run {  // neighbouring items of a row
  int row, column, n;
};

// The run that begins with an item; on the CPU its length is a power of 2.
WD_FN Run run_at(const int item, const int end, const int n_columns) {
  const int row = item / n_columns, column = item - row * n_columns;
  Run run = {row, column, wd_min(LANES, wd_min(n_columns - column, end - item))};
#if !defined(__CUDACC__)
  int n = LANES;
  while (n > run.n) n /= 2;
  run.n = n;
#endif
  return run;
}

// The runs of this block; `n_envs`, the number of items, must be in scope.
#define EACH_RUN(run, n_columns)                                                                             \
  for (int item_ = WD_FIRST_ENV + WD_THREAD, end_ = wd_min(WD_FIRST_ENV + ENVS_PER_BLOCK, n_envs), next_ = 0; \
       item_ < end_; item_ = next_)                                                                           \
    if (const Run run = run_at(item_, end_, n_columns); (next_ = item_ + (LANES == 1 ? THREADS : run.n)))

WD_FN float activated(const float x, const int activation) {
  return activation == TANH ? wd_tanh(x) : activation == RELU && x < 0.f ? 0.f : x;  // NaN stays NaN
}

WD_FN void activate_side_by_side(const float* const x, float* const out, const int n, const int activation) {
#if !defined(__CUDACC__)  // SIMD computes all branches for each number; tanh would then take longer than the layer
  if (activation != TANH) {
    WD_INDEPENDENT for (int k = 0; k < n; ++k) out[k] = activated(x[k], activation == RELU ? RELU : 0);
    return;
  }
#endif
  WD_INDEPENDENT for (int k = 0; k < n; ++k) out[k] = activated(x[k], activation);
}

// Derivative of the activation, computed from its output.
WD_FN float slope(const float y, const int activation) {
  return activation == TANH ? 1.f - y * y : activation == RELU && y <= 0.f ? 0.f : 1.f;
}

// Marks a loop over SIMD lanes; GCC would unroll one of constant length, and then not vectorise it.
#if defined(__CUDACC__) || defined(__clang__)
#define SIDE_BY_SIDE
#else
#define SIDE_BY_SIDE _Pragma("GCC unroll 1")
#endif

// Adds the products of `factors`, `step` apart, with the rows of `from`, n_columns apart, to n sums side by side.
WD_FN void add_products(float* const sums, const float* const factors, const int step, const float* const from,
                        const int n_columns, const int n_terms, const int n) {
  for (int term = 0; term < n_terms; ++term) {
    const float factor = factors[static_cast<long long>(term) * step];
    const float* const row = from + static_cast<long long>(term) * n_columns;
    SIDE_BY_SIDE for (int k = 0; k < n; ++k) sums[k] = fmaf(factor, row[k], sums[k]);
  }
}

WD_FN void add_rows(float* const sums, const float* const from, const int n_columns, const int n_rows, const int n) {
#if defined(__CUDACC__)  // keeps many loads in flight
#pragma unroll 16
#endif
  for (int r = 0; r < n_rows; ++r)
    SIDE_BY_SIDE for (int k = 0; k < n; ++k) sums[k] += from[static_cast<long long>(r) * n_columns + k];
}

// Calls a function with the length of a run; on the CPU it is a constant, so that sums stay in registers.
#if defined(__CUDACC__)
#define WITH_LENGTH(function, ...) \
  if (run.n == LANES)              \
    function(__VA_ARGS__, LANES);  \
  else                             \
    function(__VA_ARGS__, run.n)
#else
#define WITH_LENGTH(function, ...)                \
  switch (run.n) {                                \
    case 1: function(__VA_ARGS__, 1); break;      \
    case 2: function(__VA_ARGS__, 2); break;      \
    case 4: function(__VA_ARGS__, 4); break;      \
    case 8: function(__VA_ARGS__, 8); break;      \
    case 16: function(__VA_ARGS__, 16); break;    \
    case 32: function(__VA_ARGS__, 32); break;    \
    default: function(__VA_ARGS__, LANES);        \
  }
#endif

// Reads weight_t, which is w[o][i] as weight_t[i][o].
WD_KERNEL(linear)(const float* x, const float* weight_t, const float* bias, float* out, int n_in, int n_out,
                  int activation, int n_envs) {
  EACH_RUN(run, n_out) {
    float sums[LANES];
    for (int k = 0; k < run.n; ++k) sums[k] = bias[run.column + k];
    WITH_LENGTH(add_products, sums, x + static_cast<long long>(run.row) * n_in, 1, weight_t + run.column, n_out, n_in);
    float* const place = out + static_cast<long long>(run.row) * n_out + run.column;
    activate_side_by_side(sums, place, run.n, activation);
  }
}

WD_KERNEL(linear_inputs)(const float* d_out, const float* weight, const float* x, float* d_x, int n_in, int n_out,
                         int activation, int n_envs) {
  EACH_RUN(run, n_in) {
    float sums[LANES];
    for (int k = 0; k < run.n; ++k) sums[k] = 0.f;
    const float* const factors = d_out + static_cast<long long>(run.row) * n_out;
    WITH_LENGTH(add_products, sums, factors, 1, weight + run.column, n_in, n_out);
    const long long place = static_cast<long long>(run.row) * n_in + run.column;
    WD_INDEPENDENT for (int k = 0; k < run.n; ++k) d_x[place + k] = sums[k] * slope(x[place + k], activation);
  }
}

WD_KERNEL(linear_weights)(const float* d_out, const float* x, float* parts, int n_in, int n_out, int n_rows,
                          int rows_of_a_part, int n_envs) {
  EACH_RUN(run, n_in) {
    const int part = run.row / n_out, o = run.row - part * n_out;
    const long long first = static_cast<long long>(part) * rows_of_a_part;
    const int n_terms = wd_min(rows_of_a_part, n_rows - static_cast<int>(first));
    float sums[LANES];
    for (int k = 0; k < run.n; ++k) sums[k] = 0.f;
    WITH_LENGTH(add_products, sums, d_out + first * n_out + o, n_out, x + first * n_in + run.column, n_in, n_terms);
    float* const place = parts + static_cast<long long>(run.row) * n_in + run.column;
    for (int k = 0; k < run.n; ++k) place[k] = sums[k];
  }
}

WD_KERNEL(part_sums)(const float* x, float* parts, int n_columns, int n_rows, int rows_of_a_part, int n_envs) {
  EACH_RUN(run, n_columns) {
    const long long first = static_cast<long long>(run.row) * rows_of_a_part;
    float sums[LANES];
    for (int k = 0; k < run.n; ++k) sums[k] = 0.f;
    const int n_of_part = wd_min(rows_of_a_part, n_rows - static_cast<int>(first));
    WITH_LENGTH(add_rows, sums, x + first * n_columns + run.column, n_columns, n_of_part);
    float* const place = parts + static_cast<long long>(run.row) * n_columns + run.column;
    for (int k = 0; k < run.n; ++k) place[k] = sums[k];
  }
}

WD_KERNEL(add_parts)(const float* parts, float* out, int n_columns, int n_parts, int n_envs) {
  EACH_RUN(run, n_columns) {
    float sums[LANES];
    for (int k = 0; k < run.n; ++k) sums[k] = 0.f;
    WITH_LENGTH(add_rows, sums, parts + run.column, n_columns, n_parts);
    for (int k = 0; k < run.n; ++k) out[run.column + k] = sums[k];
  }
}

// ---------------------------------------------------------------- numbers one by one

WD_KERNEL(activate)(const float* x, float* out, int activation, int n_envs) {
  WD_EACH_ENV(local, at) out[at] = activated(x[at], activation);
}

WD_KERNEL(exponentials)(const float* x, float* out, int n_envs) {
  WD_EACH_ENV(local, at) out[at] = wd_exp(x[at]);
}

WD_KERNEL(chain)(const float* d_out, const float* y, float* d_x, int activation, int n_envs) {
  WD_EACH_ENV(local, at) d_x[at] = d_out[at] * slope(y[at], activation);
}

WD_KERNEL(square)(const float* x, float* out, int n_envs) {
  WD_EACH_ENV(local, at) out[at] = x[at] * x[at];
}

// Distances from the mean sum[0] / n, and their squares.
WD_KERNEL(deviations)(const float* x, const float* sum, float* deviation, float* squares, float n, int n_envs) {
  WD_EACH_ENV(local, at) {
    const float distance = x[at] - sum[0] / n;
    deviation[at] = distance;
    squares[at] = distance * distance;
  }
}

// Deviations over the standard deviation, the root of sum_of_squares[0] / n, and epsilon; the root is at least epsilon.
WD_KERNEL(standardise)(const float* deviation, const float* sum_of_squares, float* out, float n, float epsilon,
                       int n_envs) {
  WD_EACH_ENV(local, at) {
    const float variance = sum_of_squares[0] / n, least = epsilon * epsilon;
    out[at] = deviation[at] / (sqrtf(variance < least ? least : variance) + epsilon);
  }
}

// ---------------------------------------------------------------- Adam

WD_FN double power(double base, int exponent) {  // by squares, the last digit of the exponent first
  double result = 1.;
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1) result *= base;
    base *= base;
  }
  return result;
}

// The norm of the gradient is the root of sum_of_squares[0]. If max_norm is positive, longer gradients are clipped to it.
// Nothing changes if `skip` is set or the norm is not finite.
//
// Source: Kingma and Ba 2015, "Adam: a method for stochastic optimization", algorithm 1.
WD_KERNEL(adam)(const float* gradient, const float* sum_of_squares, const float* skip, const float* step,
                const float* lr, float* parameters, float* exp_avg, float* exp_avg_sq, float max_norm, float epsilon,
                int n_envs) {
  const int t = static_cast<int>(step[0]) + 1;
  const float rate = lr[0] / static_cast<float>(1. - power(0.9, t));
  const float root = static_cast<float>(sqrt(1. - power(0.999, t)));
  const float norm = sqrtf(sum_of_squares[0]);
  const float ratio = max_norm > 0.f ? (norm + 1e-6f) / max_norm : 1.f;
  const float scale = ratio > 1.f ? ratio : 1.f;
  const bool is_skipped = skip[0] != 0.f || !(norm <= 3.40282347e38f);
  WD_EACH_ENV(local, at) {
    const float g = gradient[at] / scale;
    const float first = exp_avg[at] + (g - exp_avg[at]) * 0.1f;
    const float second = exp_avg_sq[at] + (g * g - exp_avg_sq[at]) * 0.001f;
    const float moved = parameters[at] - rate * (first / (sqrtf(second) / root + epsilon));
    exp_avg[at] = is_skipped ? exp_avg[at] : first;
    exp_avg_sq[at] = is_skipped ? exp_avg_sq[at] : second;
    parameters[at] = is_skipped ? parameters[at] : moved;
  }
}

// After all threads of `adam` have read the count of steps; one item.
WD_KERNEL(count_step)(const float* sum_of_squares, const float* skip, float* step, float* norm, float* n_skipped,
                      int n_envs) {
  WD_EACH_ENV(local, at) {
    norm[0] = sqrtf(sum_of_squares[0]);
    const bool is_broken = !(norm[0] <= 3.40282347e38f);
    n_skipped[0] += is_broken ? 1.f : 0.f;
    step[0] += is_broken | (skip[0] != 0.f) ? 0.f : 1.f;
  }
}
