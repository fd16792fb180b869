// Forward and backward pass of a tile of rows through a network of one or two hidden layers, in the order of operations of
// exact.cu: bit-identical to `linear`, `linear_inputs`, `linear_weights` and `part_sums`.
//
// A block has a part of the rows. Sums over rows start at its first row and continue from tile to tile; rows beyond the
// last one must add zeros.
//
// Constants that come before this header: N_SEEN; HIDDEN1, HIDDEN2, units of the hidden layers, the latter 0 if there is
// one; N_LAST, outputs; IS_TANH, else relu.
#pragma once

#include "units.cuh"

constexpr int UNITS2 = HIDDEN2 ? HIDDEN2 : 1;

#if defined(__CUDACC__) || defined(WD_FIBRES)
#include "exact_layers_block.cuh"
#else
#include "exact_layers_rows.cuh"
#endif

// The rows of a tile that this thread handles.
#define EACH_ROW(r) for (int r = THREAD; r < TILE; r += N_THREADS)

struct WD_ALIGN(16) Weights {  // in this order they are given
  Layer<N_SEEN, HIDDEN1> first;
  Layer<HIDDEN1, UNITS2> second;  // of zeros if HIDDEN2 is 0
  Layer<WD_LAST_HIDDEN, N_LAST> last;
};

struct WD_ALIGN(16) Tile {
  Numbers<N_SEEN> seen;
  Numbers<HIDDEN1> hidden1;
  Numbers<UNITS2> hidden2;
  Numbers<N_LAST> out;

  WD_METHOD Numbers<WD_LAST_HIDDEN>& below() {
    return reinterpret_cast<Numbers<WD_LAST_HIDDEN>&>(HIDDEN2 > 0 ? hidden2.of[0][0] : hidden1.of[0][0]);
  }
};

// Fills the hidden layers from `seen`. All threads of the block must call it, with a barrier before and after.
WD_FN void pass_hidden(const Weights& weights, Tile& tile) {
  weights.first.template forward<true>(tile.seen, tile.hidden1);
  MEET();
  if constexpr (HIDDEN2 > 0) {
    weights.second.template forward<true>(tile.hidden1, tile.hidden2);
    MEET();
  }
}

// Fills `out`, too.
WD_FN void pass_forward(const Weights& weights, Tile& tile) {
  pass_hidden(weights, tile);
  weights.last.template forward<false>(tile.below(), tile.out);
  MEET();
}

// Sums of the gradients over the rows.
struct Gradients {
  Gradient<N_SEEN, HIDDEN1> first;
  Gradient<HIDDEN1, UNITS2> second;
  Gradient<WD_LAST_HIDDEN, N_LAST> last;

  // Adds a tile's gradient of each weight. `out` must hold the gradient by the outputs; the hidden layers become the
  // gradient by the units' sums, and with OF_INPUTS `seen` the gradient by the inputs. Called like `pass_hidden`.
  template <bool OF_INPUTS>
  WD_METHOD void pass_back(const Weights& weights, Tile& tile) {
    last.add(tile.out, tile.below());
    MEET();
    weights.last.template backward<true>(tile.out, tile.below());
    MEET();
    if constexpr (HIDDEN2 > 0) {
      second.add(tile.hidden2, tile.hidden1);
      MEET();
      weights.second.template backward<true>(tile.hidden2, tile.hidden1);
      MEET();
    }
    first.add(tile.hidden1, tile.seen);
    MEET();
    if constexpr (OF_INPUTS) {
      weights.first.template backward<false>(tile.hidden1, tile.seen);
      MEET();
    }
  }
};
