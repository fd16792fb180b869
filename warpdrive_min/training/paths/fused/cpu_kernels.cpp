// The fused kernels for a CPU: what a network with two hidden layers puts out, a step of A2C and PPO, and that of Adam.
//
// Built by the backend `host`, once for all sizes, which are arguments. A block owns rows, BLOCK_ROWS or as said,
// whatever the number of threads, and what is summed over rows is added up block by block: the same arguments give the same bits on any number
// of them. `warpdrive_min.training.algorithms.losses` says the loss in torch.
//
// Constants: BLOCK_ROWS; TILE_ROWS, as many of them as are worked on at a time; WIDTH, to a multiple of which rows of
// matrices are padded with what is zero, or never stored.
//
// Weights are those of `torch.nn.Linear`, (outputs, inputs) row by row.

#include <vector>

#if defined(__AVX512F__)
typedef float wd_vector __attribute__((vector_size(64)));
#elif defined(__AVX__)
typedef float wd_vector __attribute__((vector_size(32)));
#else
typedef float wd_vector __attribute__((vector_size(16)));
#endif

constexpr int LANES = sizeof(wd_vector) / sizeof(float);
constexpr int MOST_VECTORS = LANES > 8 ? 4 : 2; // of a row of a product at a time: four rows of them stay in registers
constexpr int SUMS = 5;         // policy term, value term, entropy, approximate KL, clipped rows
constexpr float LEAST = -3.40282347e38f;  // the logit of a forbidden choice: of -inf, the product with 0 would be NaN
constexpr double EPSILON = 1e-10;         // keeps a division by a spread of 0 finite
constexpr float HALF_LOG_TWO_PI = 0.918938533f;

static_assert(WIDTH % LANES == 0);

WD_FN int padded(const int size) { return (size + WIDTH - 1) / WIDTH * WIDTH; }

// ---------------------------------------------------------------- products

// Adds to a part (M, V vectors) of a matrix `c` the product of `a` (M, n_terms), which may lie transposed, and `b`.
template <int M, int V>
WD_FN void add_part(float* const c, const int c_row, const float* const a, const int a_row, const int a_column,
                    const float* const b, const int b_row, const int n_terms) {
  wd_vector sums[M][V];
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) std::memcpy(&sums[m][v], c + m * c_row + v * LANES, sizeof(wd_vector));
  for (int p = 0; p < n_terms; ++p) {
    wd_vector right[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) std::memcpy(&right[v], b + p * b_row + v * LANES, sizeof(wd_vector));
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      const float left = a[m * a_row + p * a_column];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sums[m][v] += left * right[v];
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) std::memcpy(c + m * c_row + v * LANES, &sums[m][v], sizeof(wd_vector));
}

template <int V>
static void add_columns(float* c, const int c_row, const float* a, const int a_row, const int a_column,
                        const float* const b, const int b_row, const int n_terms, const int n_rows) {
  int m = 0;
  for (; m + 4 <= n_rows; m += 4) add_part<4, V>(c + m * c_row, c_row, a + m * a_row, a_row, a_column, b, b_row, n_terms);
  for (; m + 2 <= n_rows; m += 2) add_part<2, V>(c + m * c_row, c_row, a + m * a_row, a_row, a_column, b, b_row, n_terms);
  for (; m < n_rows; ++m) add_part<1, V>(c + m * c_row, c_row, a + m * a_row, a_row, a_column, b, b_row, n_terms);
}

// c (n_rows, n_columns) += a (n_rows, n_terms) b (n_terms, n_columns); n_columns are whole vectors, rows lie as far apart
// as is said, and neighbours in a row of `a` too.
static void add_product(float* const c, const int c_row, const float* const a, const int a_row, const int a_column,
                        const float* const b, const int b_row, const int n_terms, const int n_rows, const int n_columns) {
  int n = 0;
  for (; n + MOST_VECTORS * LANES <= n_columns; n += MOST_VECTORS * LANES)
    add_columns<MOST_VECTORS>(c + n, c_row, a, a_row, a_column, b + n, b_row, n_terms, n_rows);
  for (; n < n_columns; n += LANES) add_columns<1>(c + n, c_row, a, a_row, a_column, b + n, b_row, n_terms, n_rows);
}

// Copies a matrix (n_rows, n_columns) into rows of `width`, the rest of which become zero.
static void widen(float* const to, const int width, const float* const from, const int n_rows, const int n_columns) {
  for (int i = 0; i < n_rows; ++i) {
    std::memcpy(to + i * width, from + i * n_columns, n_columns * sizeof(float));
    for (int j = n_columns; j < width; ++j) to[i * width + j] = 0.f;
  }
}

// The same of its transpose, (n_columns, n_rows).
static void transpose(float* const to, const int width, const float* const from, const int n_rows, const int n_columns) {
  for (int j = 0; j < n_columns; ++j) {
    for (int i = 0; i < n_rows; ++i) to[j * width + i] = from[i * n_columns + j];
    for (int i = n_rows; i < width; ++i) to[j * width + i] = 0.f;
  }
}

static void add_rows(float* const sum, const float* const rows, const int n_rows, const int width) {
  for (int i = 0; i < n_rows; ++i)
    for (int j = 0; j < width; ++j) sum[j] += rows[i * width + j];
}

// ---------------------------------------------------------------- perceptron

static void activate(float* const hidden, const int n, const bool is_tanh) {
  if (is_tanh)
    for (int i = 0; i < n; ++i) hidden[i] = wd_tanh(hidden[i]);
  else
    for (int i = 0; i < n; ++i) hidden[i] = hidden[i] < 0.f ? 0.f : hidden[i];
}

// Multiplies a gradient by the derivative of the activation, by what came out of that.
static void differentiate(float* const gradient, const float* const hidden, const int n, const bool is_tanh) {
  if (is_tanh)
    for (int i = 0; i < n; ++i) gradient[i] *= 1.f - hidden[i] * hidden[i];
  else
    for (int i = 0; i < n; ++i) gradient[i] = hidden[i] > 0.f ? gradient[i] : 0.f;
}

// One layer: rows of biases, to which the product with the weights is added.
static void layer(float* const out, const int width, const float* const in, const int in_row, const float* const weights,
                  const float* const bias, const int n_inputs, const int n_rows) {
  for (int r = 0; r < n_rows; ++r) std::memcpy(out + r * width, bias, width * sizeof(float));
  add_product(out, width, in, in_row, 1, weights, width, n_inputs, n_rows, width);
}

// ---------------------------------------------------------------- rows that agents share

// The observations of rows that are agents of environments: a row for each agent, or where `own` is not negative one for
// all of an environment's, in which nobody is marked. Then an agent marks itself in column `own` + its number.
struct wd_observed {
  const float* rows;   // (rows of a rollout, n_agents or 1, n_features)
  const int* indices;  // those of them that are meant, or null: the first ones, in order
  int n_agents, n_features, own;

  const float* of_env(const int row) const {
    return rows + static_cast<long long>(indices ? indices[row] : row) * n_features;
  }
};

// Calls `each` with every environment's run of the rows from `first` on: its number, where it begins, how many they are.
template <class Each>
static void for_each_env(const wd_observed& seen, const int first, const int n, const Each& each) {
  for (int r = 0; r < n;) {
    const int row = (first + r) / seen.n_agents, many = wd_min(n - r, (row + 1) * seen.n_agents - first - r);
    each(row, r, many);
    r += many;
  }
}

// The first layer: what it makes of what all agents of an environment see, and each agent's weights of its own column.
static void shared_layer(float* const out, const int width, const wd_observed& seen, const float* const weights,
                         const float* const bias, const int first, const int n) {
  for_each_env(seen, first, n, [&](const int row, const int begin, const int many) {
    float* const common = out + begin * width;
    layer(common, width, seen.of_env(row), seen.n_features, weights, bias, seen.n_features, 1);
    for (int i = many - 1; i >= 0; --i) {  // what all see lies in the first one's row
      const float* const own = weights + (seen.own + (first + begin + i) % seen.n_agents) * width;
      for (int j = 0; j < width; ++j) common[i * width + j] = common[j] + own[j];
    }
  });
}

// Adds to the gradient of its weights, transposed, that of rows whose gradients are `slopes`.
static void add_shared_product(float* const sums, const int width, const wd_observed& seen, const float* const slopes,
                               float* const total, const int first, const int n) {
  for_each_env(seen, first, n, [&](const int row, const int begin, const int many) {
    std::memset(total, 0, width * sizeof(float));
    add_rows(total, slopes + begin * width, many, width);
    add_product(sums, width, seen.of_env(row), 1, 0, total, width, 1, seen.n_features, width);
    for (int i = 0; i < many; ++i)
      add_rows(sums + (seen.own + (first + begin + i) % seen.n_agents) * width, slopes + (begin + i) * width, 1, width);
  });
}

// ---------------------------------------------------------------- networks

// Three layers, ready to be multiplied with: weights transposed, (inputs, padded outputs), and padded biases.
struct wd_layers {
  std::vector<float> room;
  float *w1, *b1, *w2, *b2, *w3, *b3;
  int wide1, wide2, wide3;

  wd_layers(const float* const from[6], const int n_features, const int n_first, const int n_second, const int n_outputs)
      : wide1(padded(n_first)), wide2(padded(n_second)), wide3(padded(n_outputs)) {
    room.resize((n_features + 1) * wide1 + (n_first + 1) * wide2 + (n_second + 1) * wide3);
    w1 = room.data(), b1 = w1 + n_features * wide1;
    w2 = b1 + wide1, b2 = w2 + n_first * wide2;
    w3 = b2 + wide2, b3 = w3 + n_second * wide3;
    transpose(w1, wide1, from[0], n_first, n_features);
    widen(b1, wide1, from[1], 1, n_first);
    transpose(w2, wide2, from[2], n_second, n_first);
    widen(b2, wide2, from[3], 1, n_second);
    transpose(w3, wide3, from[4], n_outputs, n_second);
    widen(b3, wide3, from[5], 1, n_outputs);
  }
};

// Writes `out` (n_rows, n_outputs) of `x` (n_rows, n_features), or (n_rows / n_agents, n_features) where agents share them;
// of a box, `scale` * tanh(out) + `offset`.
WD_KERNEL(evaluate)(const float* x, const float* w1, const float* b1, const float* w2, const float* b2, const float* w3,
                    const float* b3, float* out, int n_rows, int n_agents, int n_features, int own_columns, int n_first,
                    int n_second, int n_outputs, int is_tanh, int is_box, float scale, float offset) {
  const float* const from[6] = {w1, b1, w2, b2, w3, b3};
  const wd_layers of(from, n_features, n_first, n_second, n_outputs);
  std::vector<float> room(TILE_ROWS * (of.wide1 + of.wide2 + of.wide3));
  float *const hidden1 = room.data(), *const hidden2 = hidden1 + TILE_ROWS * of.wide1;
  float* const outputs = hidden2 + TILE_ROWS * of.wide2;
  const int end = wd_min(n_rows, (WD_BLOCK + 1) * BLOCK_ROWS);
  for (int row = WD_BLOCK * BLOCK_ROWS; row < end; row += TILE_ROWS) {
    const int n = wd_min(TILE_ROWS, end - row);
    if (own_columns < 0)
      layer(hidden1, of.wide1, x + static_cast<long long>(row) * n_features, n_features, of.w1, of.b1, n_features, n);
    else
      shared_layer(hidden1, of.wide1, {x, nullptr, n_agents, n_features, own_columns}, of.w1, of.b1, row, n);
    activate(hidden1, n * of.wide1, is_tanh);
    layer(hidden2, of.wide2, hidden1, of.wide1, of.w2, of.b2, n_first, n);
    activate(hidden2, n * of.wide2, is_tanh);
    layer(outputs, of.wide3, hidden2, of.wide2, of.w3, of.b3, n_second, n);
    float* to = out + static_cast<long long>(row) * n_outputs;
    for (int r = 0; r < n; ++r)
      for (int o = 0; o < n_outputs; ++o, ++to) {
        const float output = outputs[r * of.wide3 + o];
        *to = is_box ? scale * wd_tanh(output) + offset : output;
      }
  }
}

// ---------------------------------------------------------------- loss

// What the loss takes beside the network; of what may be null there is none.
struct wd_loss {
  const int* actions;        // (rows of the rollout, n_types): int32, or the bits of float32 of a box
  const float* log_probs;    // (rows of the rollout,), of the actions when they were drawn
  const float* returns;      // (rows of the rollout,)
  const float* old_values;   // likewise, or null: values are not clipped
  const int* masks;          // (rows of the rollout, n_outputs), 0 forbids a choice; or null
  const int* categories;     // (n_types,), choices of each; null of a box
  const float* log_std;      // (n_types,) of a box
  int n_types, n_outputs;
  float clip_param, value_clip;
  bool is_clipped;           // PPO's surrogate, else A2C's policy gradient
  float scale, value_scale, entropy_scale;  // 1 / total, alone and with each coefficient
};

// The terms of a row, and their slopes by the log-probability and the value.
struct wd_terms {
  float policy, value, entropy, kl, clipped;
};

// The share of the gradient that the first of two numbers gets: 1 if it is larger, half in a tie, else 0.
WD_FN float share_of(const float first, const float second) { return first > second ? 1.f : first == second ? 0.5f : 0.f; }

// The lesser of two, or the one that is not a number.
WD_FN float lesser(const float a, const float b) { return a < b || a != a ? a : b; }

// exp(x) - 1 - x.
WD_FN float excess(const float x) {
  if (fabsf(x) >= 0.5f) return std::expm1(x) - x;
  const float series = 1.f + x * (1.f / 5) * (1.f + x * (1.f / 6) * (1.f + x * (1.f / 7) * (1.f + x * (1.f / 8))));
  return 0.5f * x * x * (1.f + x * (1.f / 3) * (1.f + x * (1.f / 4) * series));
}

// Terms of one row, whose number in the rollout is `source`. Writes the gradients of its head into `d_head` and of its
// value into `d_value`, and adds that of log_std to `d_scales`.
static wd_terms terms_of(const wd_loss& loss, const long long source, const float* const head, const float value,
                         const float* const given_advantage, const float weight, float* const d_head, float* const d_value,
                         float* const d_scales, float* const room) {
  const float target = loss.returns[source];
  const float advantage = given_advantage ? *given_advantage : target - value;
  const int* const actions = loss.actions + source * loss.n_types;
  wd_terms terms = {};
  float log_prob = 0.f;
  float *const chances = room, *const products = room + loss.n_outputs, *const entropies = room + 2 * loss.n_outputs;
  if (loss.categories) {
    for (int type = 0, start = 0; type < loss.n_types; start += loss.categories[type++]) {
      const int n = loss.categories[type];
      const int* const mask = loss.masks ? loss.masks + source * loss.n_outputs + start : nullptr;
      float most = LEAST, norm = 0.f, entropy = 0.f;
      bool is_free = !mask;
      for (int k = 0; k < n; ++k) {
        const bool is_allowed = !mask || mask[k];
        is_free |= is_allowed;
        products[start + k] = is_allowed ? head[start + k] : LEAST;
        most = products[start + k] > most || products[start + k] != products[start + k] ? products[start + k] : most;
      }
      for (int k = 0; k < n; ++k) norm += chances[start + k] = std::exp(products[start + k] -= most);
      const float log_norm = std::log(norm);
      if (is_free) log_prob += products[start + actions[type]] - log_norm;
      for (int k = 0; k < n; ++k) {
        chances[start + k] /= norm;
        products[start + k] = chances[start + k] * (products[start + k] - log_norm);
        entropy -= products[start + k];
      }
      entropies[type] = is_free ? entropy : 0.f;
      terms.entropy += entropies[type];
    }
  } else {
    for (int j = 0; j < loss.n_types; ++j) {
      const float scale = loss.log_std[j];
      const float z = (wd_float(actions[j]) - head[j]) * std::exp(-scale);
      products[j] = z;
      log_prob += -0.5f * z * z - scale - HALF_LOG_TWO_PI;
      terms.entropy += scale + (0.5f + HALF_LOG_TWO_PI);
    }
  }
  const float log_ratio = log_prob - loss.log_probs[source];
  terms.kl = excess(log_ratio);
  terms.clipped = fabsf(terms.kl + log_ratio) > loss.clip_param ? 1.f : 0.f;
  float d_log_prob;
  if (loss.is_clipped) {
    const float low = 1.f - loss.clip_param, high = 1.f + loss.clip_param, ratio = std::exp(log_ratio);
    const float free = ratio * advantage, clipped = wd_clip(ratio, low, high) * advantage;
    float share = share_of(clipped, free);
    if (ratio >= low && ratio <= high) share = 1.f;
    terms.policy = -lesser(free, clipped);
    d_log_prob = -share * free;
  } else {
    terms.policy = -log_prob * advantage;
    d_log_prob = -advantage;
  }
  const float error = value - target;
  terms.value = error * error;
  float slope = 2.f * error;
  if (loss.old_values) {
    const float moved = value - loss.old_values[source];
    const float other = loss.old_values[source] + wd_clip(moved, -loss.value_clip, loss.value_clip) - target;
    const float share = share_of(terms.value, other * other);
    slope = 2.f * (share * error + (fabsf(moved) <= loss.value_clip ? (1.f - share) * other : 0.f));
    terms.value = -lesser(-terms.value, -other * other);
  }
  *d_value = slope * weight * loss.value_scale;
  d_log_prob *= weight * loss.scale;
  const float d_entropy = -weight * loss.entropy_scale;
  if (loss.categories) {
    for (int type = 0, start = 0; type < loss.n_types; start += loss.categories[type++])
      for (int k = start; k < start + loss.categories[type]; ++k) {
        const bool is_allowed = !loss.masks || loss.masks[source * loss.n_outputs + k];
        const float of_choice = (k - start == actions[type] ? 1.f : 0.f) - chances[k];
        d_head[k] =
            is_allowed ? d_log_prob * of_choice - d_entropy * (products[k] + chances[k] * entropies[type]) : 0.f;
      }
  } else {
    for (int j = 0; j < loss.n_types; ++j) {
      d_head[j] = d_log_prob * products[j] * std::exp(-loss.log_std[j]);
      d_scales[j] += d_log_prob * (products[j] * products[j] - 1.f) + d_entropy;
    }
  }
  return terms;
}

// ---------------------------------------------------------------- a step of A2C and PPO

// The parts of a network's parameters: weights and biases of the policy's three layers, then of the value's, whose first
// four are the policy's where they share them, then log_std if it is learned. Their gradients lie in a block's sums in
// padded rows, those of first layers transposed: these are short.
constexpr int PARTS = 13;

struct wd_parts {
  int n_rows[PARTS], n_columns[PARTS], start[PARTS + 1];

  wd_parts(const int n_features, const int n_first, const int n_second, const int n_outputs, const int n_scales,
           const bool is_shared) {
    const int units[2] = {n_outputs, 1};
    for (int path = 0; path < 2; ++path) {
      const int rows[6] = {n_features, 1, n_second, 1, units[path], 1};
      const int columns[6] = {n_first, n_first, n_first, n_second, n_second, units[path]};
      for (int part = 0; part < 6; ++part) {
        n_rows[path * 6 + part] = path && is_shared && part < 4 ? 0 : rows[part];
        n_columns[path * 6 + part] = columns[part];
      }
    }
    n_rows[12] = n_scales ? 1 : 0, n_columns[12] = n_scales;
    start[0] = 0;
    for (int part = 0; part < PARTS; ++part) start[part + 1] = start[part] + n_rows[part] * padded(n_columns[part]);
  }
};

// Hidden layers of a tile under one head or both, and the gradient that goes back through them.
struct wd_trunk {
  const float *w2, *w3;  // (n_second, padded n_first) and (outputs of the head, padded n_second)
  float *hidden1, *hidden2, *d1, *d2;
};

// Writes the sums of a block's rows into its row of `partial`, (blocks, parts and then WIDTH terms): what they add to the
// gradients of all parts of `parameters`, which begin at `offsets`, and to the loss's terms. Rows of the minibatch are the
// rows `indices` of the rollout, or those of the same numbers; each counts for `n_agents` rows of the other arrays.
//
// `advantages` and `weights` are those of the minibatch; without advantages they are what values are short of returns by.
// `values` gets the values of its rows, if it is there.
WD_KERNEL(learn)(const float* parameters, const int* offsets, const float* observations, const int* indices,
                 const int* actions, const float* log_probs, const float* returns, const float* advantages,
                 const float* weights, const float* old_values, const int* masks, const int* categories,
                 const float* log_std, const float* total, const float* vf_loss_coeff, const float* entropy_coeff,
                 float* values, float* partial, int n_rows, int n_agents, int n_features, int own_columns, int n_first,
                 int n_second, int n_outputs, int n_types, int n_scales, int is_shared, int is_tanh, int is_clipped,
                 float clip_param, float value_clip, float scale, float offset, int rows_of_block) {
  const bool is_box = !categories;
  const wd_parts parts(n_features, n_first, n_second, n_outputs, n_scales, is_shared);
  const float* of[PARTS];
  for (int part = 0; part < 12; ++part) of[part] = parameters + offsets[part];
  const wd_layers policy(of, n_features, n_first, n_second, n_outputs), valued(of + 6, n_features, n_first, n_second, 1);
  const int wide1 = policy.wide1, wide2 = policy.wide2, wide3 = policy.wide3;
  const int n_heads = 2, n_trunks = is_shared ? 1 : 2;

  std::vector<float> room(2 * n_second * wide1 + (n_outputs + 1) * wide2 + TILE_ROWS * (n_features + 4 * (wide1 + wide2) + 2 * wide3 + WIDTH + 1) +
                          wide1 + 3 * n_outputs + 2 * n_types);
  float* at = room.data();
  const auto take = [&at](const int n) { return (at += n) - n; };
  float *const seen = take(TILE_ROWS * n_features), *const head = take(TILE_ROWS * wide3), *const d_head = take(TILE_ROWS * wide3);
  float *const value = take(TILE_ROWS * WIDTH), *const d_value = take(TILE_ROWS);
  float *const bounded = take(n_outputs), *const fixed = take(n_types), *const slopes_of_env = take(wide1);
  const wd_observed observed = {observations, indices, n_agents, n_features, own_columns};
  wd_trunk trunks[2];
  for (int i = 0; i < n_heads; ++i) {
    float *const w2 = take(n_second * wide1), *const w3 = take((i ? 1 : n_outputs) * wide2);
    widen(w2, wide1, of[i * 6 + 2], n_second, n_first);
    widen(w3, wide2, of[i * 6 + 4], i ? 1 : n_outputs, n_second);
    trunks[i] = {w2, w3, take(TILE_ROWS * wide1), take(TILE_ROWS * wide2), take(TILE_ROWS * wide1), take(TILE_ROWS * wide2)};
  }
  wd_trunk& under_value = trunks[n_trunks - 1];
  const wd_loss loss = {actions, log_probs, returns, old_values, masks, categories, log_std, n_types, n_outputs, clip_param,
                        value_clip, is_clipped != 0, 1.f / *total, *vf_loss_coeff / *total, *entropy_coeff / *total};

  const int n_sums = parts.start[PARTS] + WIDTH;
  float* const sums = partial + static_cast<long long>(WD_BLOCK) * n_sums;
  std::memset(sums, 0, n_sums * sizeof(float));
  float* const terms = sums + parts.start[PARTS];
  const int n_items = n_rows * n_agents, end = wd_min(n_items, (WD_BLOCK + 1) * rows_of_block);
  for (int first = WD_BLOCK * rows_of_block; first < end; first += TILE_ROWS) {
    const int n = wd_min(TILE_ROWS, end - first);
    long long sources[TILE_ROWS];
    for (int r = 0; r < n; ++r) {
      const int row = (first + r) / n_agents, agent = (first + r) % n_agents;
      sources[r] = static_cast<long long>(indices ? indices[row] : row) * n_agents + agent;
      if (own_columns < 0)
        std::memcpy(seen + r * n_features, observations + sources[r] * n_features, n_features * sizeof(float));
    }

    // Forward
    for (int i = 0; i < n_trunks; ++i) {
      const wd_layers& layers = i ? valued : policy;
      if (own_columns < 0)
        layer(trunks[i].hidden1, wide1, seen, n_features, layers.w1, layers.b1, n_features, n);
      else
        shared_layer(trunks[i].hidden1, wide1, observed, layers.w1, layers.b1, first, n);
      activate(trunks[i].hidden1, n * wide1, is_tanh);
      layer(trunks[i].hidden2, wide2, trunks[i].hidden1, wide1, layers.w2, layers.b2, n_first, n);
      activate(trunks[i].hidden2, n * wide2, is_tanh);
    }
    layer(head, wide3, trunks[0].hidden2, wide2, policy.w3, policy.b3, n_second, n);
    layer(value, WIDTH, under_value.hidden2, wide2, valued.w3, valued.b3, n_second, n);

    // Loss: its terms, and its gradients by heads and values
    for (int r = 0; r < n; ++r) {
      const int row = (first + r) / n_agents;
      float *const outputs = head + r * wide3, *const slopes = d_head + r * wide3;
      for (int o = 0; is_box && o < n_outputs; ++o) {
        bounded[o] = wd_tanh(outputs[o]);
        outputs[o] = scale * bounded[o] + offset;
      }
      const float weight = weights ? weights[row] : 1.f;
      const wd_terms found = terms_of(loss, sources[r], outputs, value[r * WIDTH], advantages ? advantages + first + r : nullptr,
                                      weight, slopes, d_value + r, n_scales ? sums + parts.start[12] : fixed, at);
      for (int o = 0; is_box && o < n_outputs; ++o) slopes[o] *= scale * (1.f - bounded[o] * bounded[o]);
      if (values) values[first + r] = value[r * WIDTH];
      terms[0] += weight * found.policy;
      terms[1] += weight * found.value;
      terms[2] += weight * found.entropy;
      terms[3] += weight * found.kl;
      terms[4] += weight * found.clipped;
    }

    // Backward
    for (int i = 0; i < n_trunks; ++i) std::memset(trunks[i].d2, 0, n * wide2 * sizeof(float));
    add_product(sums + parts.start[4], wide2, d_head, 1, wide3, trunks[0].hidden2, wide2, n, n_outputs, wide2);
    add_product(trunks[0].d2, wide2, d_head, wide3, 1, trunks[0].w3, wide2, n_outputs, n, wide2);
    add_product(sums + parts.start[10], wide2, d_value, 0, 1, under_value.hidden2, wide2, n, 1, wide2);
    add_product(under_value.d2, wide2, d_value, 1, 0, trunks[1].w3, wide2, 1, n, wide2);
    for (int r = 0; r < n; ++r) {
      for (int o = 0; o < n_outputs; ++o) sums[parts.start[5] + o] += d_head[r * wide3 + o];
      sums[parts.start[11]] += d_value[r];
    }
    for (int i = 0; i < n_trunks; ++i) {
      const wd_trunk& trunk = trunks[i];
      const int* const start = parts.start + i * 6;
      differentiate(trunk.d2, trunk.hidden2, n * wide2, is_tanh);
      add_product(sums + start[2], wide1, trunk.d2, 1, wide2, trunk.hidden1, wide1, n, n_second, wide1);
      add_rows(sums + start[3], trunk.d2, n, wide2);
      std::memset(trunk.d1, 0, n * wide1 * sizeof(float));
      add_product(trunk.d1, wide1, trunk.d2, wide2, 1, trunk.w2, wide1, n_second, n, wide1);
      differentiate(trunk.d1, trunk.hidden1, n * wide1, is_tanh);
      if (own_columns < 0)
        add_product(sums + start[0], wide1, seen, 1, n_features, trunk.d1, wide1, n, n_features, wide1);
      else
        add_shared_product(sums + start[0], wide1, observed, trunk.d1, slopes_of_env, first, n);
      add_rows(sums + start[1], trunk.d1, n, wide1);
    }
  }
}

// Writes the advantages of a minibatch, rows `indices` of those of the rollout, in their order, or the first ones; if it
// `normalises` them, shifted and scaled to mean 0 and standard deviation 1, as `losses.normalise` does.
WD_KERNEL(take)(const float* advantages, const int* indices, float* taken, int n_rows, int n_agents, int normalises) {
  const int n = n_rows * n_agents;
  double sum = 0, squares = 0;
  for (int i = 0; i < n; ++i) {
    taken[i] = advantages[indices ? static_cast<long long>(indices[i / n_agents]) * n_agents + i % n_agents : i];
    sum += taken[i];
  }
  if (!normalises) return;
  const double mean = sum / n;
  for (int i = 0; i < n; ++i) squares += (taken[i] - mean) * (taken[i] - mean);
  const double spread = std::sqrt(std::fmax(squares / (n > 1 ? n - 1 : 1), EPSILON * EPSILON)) + EPSILON;
  for (int i = 0; i < n; ++i) taken[i] = static_cast<float>((taken[i] - mean) / spread);
}

// Adds up the sums of all blocks in the first one's; writes the gradient of each part to its place in `gradient`, as it
// lies in the parameters, and the means of the loss's terms, `means` (5,).
WD_KERNEL(add_up)(float* partial, const int* offsets, const float* total, float* gradient, float* means, int n_blocks,
                  int n_features, int n_first, int n_second, int n_outputs, int n_scales, int is_shared) {
  const wd_parts parts(n_features, n_first, n_second, n_outputs, n_scales, is_shared);
  const int n_sums = parts.start[PARTS] + WIDTH;
  for (int block = 1; block < n_blocks; ++block) add_rows(partial, partial + static_cast<long long>(block) * n_sums, 1, n_sums);
  for (int part = 0; part < PARTS; ++part) {
    const bool is_transposed = part % 6 == 0 && part < 12;
    const int n_rows = parts.n_rows[part], n_columns = parts.n_columns[part];
    for (int i = 0; i < n_rows; ++i)
      for (int j = 0; j < n_columns; ++j)
        gradient[offsets[part] + (is_transposed ? j * n_rows + i : i * n_columns + j)] =
            partial[parts.start[part] + i * padded(n_columns) + j];
  }
  for (int term = 0; term < SUMS; ++term) means[term] = partial[parts.start[PARTS] + term] / *total;
}

// ---------------------------------------------------------------- Adam

// Shortens the gradient to `max_norm` if that is positive, and takes a step with it, unless its norm is not finite, which
// `n_skipped` counts, or `skip` says so. The arrays are those of `FlatAdam`.
WD_KERNEL(adam)(float* parameters, float* gradient, float* exp_avg, float* exp_avg_sq, float* step, float* norm,
                float* n_skipped, const float* lr, const unsigned char* skip, int n, float max_norm, double eps) {
  constexpr double beta1 = 0.9, beta2 = 0.999;
  constexpr float ALMOST_ZERO = 1e-6f;
  double parts[WIDTH] = {};
  int i = 0;
  for (; i + WIDTH <= n; i += WIDTH)
    for (int lane = 0; lane < WIDTH; ++lane) parts[lane] += static_cast<double>(gradient[i + lane]) * gradient[i + lane];
  for (; i < n; ++i) parts[0] += static_cast<double>(gradient[i]) * gradient[i];
  double square = 0;
  for (int lane = 0; lane < WIDTH; ++lane) square += parts[lane];
  *norm = static_cast<float>(std::sqrt(square));
  if (skip && *skip) return;
  const bool is_broken = !std::isfinite(*norm);
  *n_skipped += is_broken;
  if (is_broken) return;
  *step += 1.f;
  const float excess_norm = max_norm > 0.f ? std::fmax((*norm + ALMOST_ZERO) / max_norm, 1.f) : 1.f;
  const double bias1 = 1 - std::pow(beta1, static_cast<double>(*step)), bias2 = 1 - std::pow(beta2, static_cast<double>(*step));
  const float rate = static_cast<float>(*lr / bias1), root = static_cast<float>(1 / std::sqrt(bias2)), least = static_cast<float>(eps);
  for (int j = 0; j < n; ++j) {
    const float slope = gradient[j] /= excess_norm;
    exp_avg[j] += static_cast<float>(1 - beta1) * (slope - exp_avg[j]);
    exp_avg_sq[j] = static_cast<float>(beta2) * exp_avg_sq[j] + static_cast<float>(1 - beta2) * slope * slope;
    parameters[j] -= rate * exp_avg[j] / (std::sqrt(exp_avg_sq[j]) * root + least);
  }
}
