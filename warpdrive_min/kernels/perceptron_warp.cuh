// A perceptron on the matrix units of a GPU: a warp passes 32 rows through all layers and keeps all intermediate results in
// registers.
//
// A float32 product is three TF32 products: each factor is split into its first 11 bits and the rest, and only the product
// of the rests is omitted. So errors are those of float32. With TF32 it is one product, of the first bits.
//
// A tile of 16 rows and 8 columns has four numbers in each lane, 4 g + t: those of rows g and g + 8 in columns 2 t and
// 2 t + 1. This is the output layout of a product (`mma.m16n8k8`). It is used unchanged as the next input, since the order
// of a sum's terms is free: the unit takes a lane's two columns for columns t and t + 4. `warpdrive_min.perceptron` orders
// the weights accordingly: for each 8 outputs and 8 inputs, each lane's weights of output g and inputs 2 t and 2 t + 1.
// A layer's biases follow its weights. Sizes are rounded up to multiples of 8, with zeros.
//
// Constants that come before this header: N_SEEN; HIDDEN1, HIDDEN2, units of the hidden layers, the latter 0 if there
// is one; IS_TANH; TF32.
#pragma once

#include "matrix_units.cuh"
#include "units.cuh"

struct WD_ALIGN(8) wd_pair {
  float x, y;
};

WD_FN constexpr int wd_tiles(const int n) { return (n + 7) / 8; }

// Floats of a layer's weights and biases.
WD_FN constexpr int wd_layer_floats(const int n_inputs, const int n_outputs) {
  return wd_tiles(n_outputs) * (64 * wd_tiles(n_inputs) + 8);
}

constexpr int WD_TILES_IN = wd_tiles(N_SEEN), WD_TILES1 = wd_tiles(HIDDEN1), WD_TILES2 = wd_tiles(HIDDEN2);
constexpr int WD_TILES_LAST = wd_tiles(WD_LAST_HIDDEN);
constexpr int WD_FIRST_FLOATS = wd_layer_floats(N_SEEN, HIDDEN1);
constexpr int WD_SECOND_FLOATS = HIDDEN2 ? wd_layer_floats(HIDDEN1, HIDDEN2) : 0;
constexpr int WD_AT_ONCE = HIDDEN1 <= 64 ? 2 : 1;  // tiles of 16 rows whose first layer fits into the registers

// A sum of products in two independent parts: products of first bits, and the others.
struct wd_sum {
  float high[4], low[4];
};

// sum += left * right, where `left` is a tile as it comes out of a product, and `right` a lane's weights.
WD_FN void wd_multiply(wd_sum& sum, const float (&left)[4], const wd_pair right) {
  if constexpr (TF32) {  // the unit leaves the other bits out itself
    wd_multiply_tf32(sum.high, {wd_bits(left[0]), wd_bits(left[2]), wd_bits(left[1]), wd_bits(left[3])},
                     {wd_bits(right.x), wd_bits(right.y)});
    return;
  }
  unsigned high[4], low[4], right_high[2], right_low[2];
  wd_cut(left[0], high[0], low[0]);
  wd_cut(left[2], high[1], low[1]);
  wd_cut(left[1], high[2], low[2]);
  wd_cut(left[3], high[3], low[3]);
  wd_cut(right.x, right_high[0], right_low[0]);
  wd_cut(right.y, right_high[1], right_low[1]);
  wd_multiply_tf32(sum.low, low, right_high);
  wd_multiply_tf32(sum.high, high, right_high);
  wd_multiply_tf32(sum.low, high, right_low);
}

WD_FN void wd_activate(float (&tile)[4], const wd_sum& sum) {
#pragma unroll
  for (int i = 0; i < 4; ++i) tile[i] = wd_activated(sum.high[i] + sum.low[i]);
}

// A sum of nothing but the biases of a lane's columns.
WD_FN wd_sum wd_begin(const float* const biases) {
  const wd_pair of = wd_load<wd_pair>(biases);
  return {{of.x, of.y, of.x, of.y}, {0.f, 0.f, 0.f, 0.f}};
}

// Writes the last layer's outputs for ROWS rows, 16 or 32, to `out` (ROWS, OUT_ROW), padded to multiples of 8. `in` returns a
// row's inputs of two columns, an even one and the next, and zeros for columns from N_SEEN on. SIDE_BY_SIDE tiles of the
// second layer do not wait for each other. All lanes of a warp must call it, with a barrier before and after.
template <int N_OUTPUTS, int OUT_ROW, int ROWS, int SIDE_BY_SIDE, class In>
WD_FN void wd_evaluate(const float* const weights, const In in, float (*const out)[OUT_ROW], const int lane) {
  constexpr int TILES_OUT = wd_tiles(N_OUTPUTS), AT_ONCE = wd_min(WD_AT_ONCE, ROWS / 16);
  const int g = lane / 4, t = lane % 4;
  const float* const first = weights;
  const float* const second = first + WD_FIRST_FLOATS;
  const float* const last = second + WD_SECOND_FLOATS;
  const float* const first_biases = first + WD_TILES1 * WD_TILES_IN * 64 + 2 * t;
  const float* const second_biases = second + WD_TILES2 * WD_TILES1 * 64 + 2 * t;
  const float* const last_biases = last + TILES_OUT * WD_TILES_LAST * 64 + 2 * t;
#pragma unroll 1
  for (int above = 0; above < ROWS; above += 16 * AT_ONCE) {
    float seen[AT_ONCE][WD_TILES_IN][4], hidden[AT_ONCE][WD_TILES1][4];
    wd_sum sums[AT_ONCE][TILES_OUT];
#pragma unroll
    for (int m = 0; m < AT_ONCE; ++m) {
#pragma unroll
      for (int k = 0; k < WD_TILES_IN; ++k) {
        const int row = above + 16 * m + g, column = 8 * k + 2 * t;
        const wd_pair upper = in(row, column), lower = in(row + 8, column);
        seen[m][k][0] = upper.x, seen[m][k][1] = upper.y, seen[m][k][2] = lower.x, seen[m][k][3] = lower.y;
      }
#pragma unroll
      for (int o = 0; o < TILES_OUT; ++o) sums[m][o] = wd_begin(last_biases + 8 * o);
    }
#pragma unroll
    for (int n = 0; n < WD_TILES1; ++n) {
      wd_sum units[AT_ONCE];
#pragma unroll
      for (int m = 0; m < AT_ONCE; ++m) units[m] = wd_begin(first_biases + 8 * n);
#pragma unroll
      for (int k = 0; k < WD_TILES_IN; ++k) {
        const wd_pair right = wd_load<wd_pair>(first + (n * WD_TILES_IN + k) * 64 + 2 * lane);
#pragma unroll
        for (int m = 0; m < AT_ONCE; ++m) wd_multiply(units[m], seen[m][k], right);
      }
#pragma unroll
      for (int m = 0; m < AT_ONCE; ++m) wd_activate(hidden[m][n], units[m]);
    }
    if constexpr (HIDDEN2 == 0) {
#pragma unroll
      for (int n = 0; n < WD_TILES1; ++n)
#pragma unroll
        for (int o = 0; o < TILES_OUT; ++o) {
          const wd_pair right = wd_load<wd_pair>(last + (o * WD_TILES1 + n) * 64 + 2 * lane);
#pragma unroll
          for (int m = 0; m < AT_ONCE; ++m) wd_multiply(sums[m][o], hidden[m][n], right);
        }
    } else {  // some units of the second layer at a time, used for the last one immediately
#pragma unroll 1
      for (int n = 0; n < WD_TILES2; n += SIDE_BY_SIDE) {
        float tiles[SIDE_BY_SIDE][AT_ONCE][4];
        wd_sum units[SIDE_BY_SIDE][AT_ONCE];
#pragma unroll
        for (int i = 0; i < SIDE_BY_SIDE; ++i)
#pragma unroll
          for (int m = 0; m < AT_ONCE; ++m) units[i][m] = wd_begin(second_biases + 8 * (n + i));
#pragma unroll
        for (int k = 0; k < WD_TILES1; ++k)
#pragma unroll
          for (int i = 0; i < SIDE_BY_SIDE; ++i) {
            const wd_pair right = wd_load<wd_pair>(second + ((n + i) * WD_TILES1 + k) * 64 + 2 * lane);
#pragma unroll
            for (int m = 0; m < AT_ONCE; ++m) wd_multiply(units[i][m], hidden[m][k], right);
          }
#pragma unroll
        for (int i = 0; i < SIDE_BY_SIDE; ++i)
#pragma unroll
          for (int m = 0; m < AT_ONCE; ++m) wd_activate(tiles[i][m], units[i][m]);
#pragma unroll
        for (int i = 0; i < SIDE_BY_SIDE; ++i)
#pragma unroll
          for (int o = 0; o < TILES_OUT; ++o) {
            const wd_pair right = wd_load<wd_pair>(last + (o * WD_TILES2 + n + i) * 64 + 2 * lane);
#pragma unroll
            for (int m = 0; m < AT_ONCE; ++m) wd_multiply(sums[m][o], tiles[i][m], right);
          }
      }
    }
#pragma unroll
    for (int m = 0; m < AT_ONCE; ++m)
#pragma unroll
      for (int o = 0; o < TILES_OUT; ++o) {
        const int row = above + 16 * m + g, column = 8 * o + 2 * t;
        const wd_sum& sum = sums[m][o];
        wd_store(out[row] + column, wd_pair{sum.high[0] + sum.low[0], sum.high[1] + sum.low[1]});
        wd_store(out[row + 8] + column, wd_pair{sum.high[2] + sum.low[2], sum.high[3] + sum.low[3]});
      }
  }
}
