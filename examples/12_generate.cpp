// SPDX-License-Identifier: MIT

// Trains a small language model of characters, and generates text with it, token by token. Its attention keeps a state
// of constant size (Decoder), where softmax attention needs the keys and values of all tokens: tokens a second of both,
// after longer and longer texts.
//
//     12_generate [STEPS [TOKENS]]     1000 steps of training; tokens a second after up to 65536 tokens

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <nprf/nprf.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "examples/support/character_model.hpp"
#include "examples/support/measure.hpp"

using namespace nprf;
using demo::Layer, demo::CharacterModel, demo::Text, demo::of_heads;

namespace {

/// Returns the loss of the first and of the last step.
std::pair<float, float> train(CharacterModel& model, const Text& text, int steps) {
  constexpr Index batch = 4, n = 128;
  std::mt19937 random(1);
  float first = 0, loss = 0;
  for (int step = 0; step <= steps; ++step) {
    std::vector<Index> in, next;
    for (Index b = 0; b < batch; ++b) {
      const auto from = text.tokens.begin() + static_cast<std::ptrdiff_t>(random() % (text.tokens.size() - n));
      in.insert(in.end(), from, from + n);
      next.insert(next.end(), from + 1, from + 1 + n);
    }
    loss = demo::train_step(model, in, next, batch);
    if (step == 0) first = loss;
    if (step % 100 == 0 || step == steps) std::printf("step %4d: %.3f nats a character\n", step, loss);
  }
  return {first, loss};
}

/// The attention of generation: the states of each layer's heads after the tokens so far.
struct States {
  explicit States(CharacterModel& model) {
    for (const Layer& layer : model.layers()) decoders.emplace_back(layer.attention());
  }
  void operator()(std::size_t b, const Matrix<float>& q, const Matrix<float>& k, const Matrix<float>& v,
                  Matrix<float>& y) {
    decoders[b].step(of_heads(q, 1), of_heads(k, 1), of_heads(v, 1), of_heads(y, 1));
  }

  std::vector<Decoder<float>> decoders;
};

/// The same by exact softmax: all keys and values of each layer's heads.
struct Caches {
  explicit Caches(CharacterModel& model) {
    for (const Layer& layer : model.layers())
      for (const T5Position<float>& position : layer.positions())
        heads.emplace_back(position, Layer::normalization(), Layer::head_dim, Layer::head_dim);
  }
  // a prompt's keys and values; its queries are not needed to measure the time of later tokens
  void append(std::size_t b, const Matrix<float>& k, const Matrix<float>& v) {
    for (Index h = 0; h < Layer::heads; ++h) of(b, h).append(of_heads(k, 1)(0, h), of_heads(v, 1)(0, h));
  }
  void operator()(std::size_t b, const Matrix<float>& q, const Matrix<float>& k, const Matrix<float>& v,
                  Matrix<float>& y) {
    for (Index h = 0; h < Layer::heads; ++h)
      of(b, h).step(of_heads(q, 1)(0, h), of_heads(k, 1)(0, h), of_heads(v, 1)(0, h), of_heads(y, 1)(0, h));
  }
  reference::SoftmaxDecoder<float>& of(std::size_t b, Index h) {
    return heads[b * static_cast<std::size_t>(Layer::heads) + static_cast<std::size_t>(h)];
  }

  std::vector<reference::SoftmaxDecoder<float>> heads;
};

/// A character drawn from softmax(logits / temperature).
Index draw(const Matrix<float>& logits, std::mt19937& random, float temperature = 0.25f) {
  const Vector<float> p = ((logits.row(0).array() - logits.maxCoeff()) / temperature).exp().matrix().transpose();
  float left = p.sum() * static_cast<float>(random()) / 4294967296.0f;
  Index c = 0;
  while (c + 1 < p.size() && left >= p[c]) left -= p[c++];
  return c;
}

/// Continues the first characters of the text. Returns the largest difference of its logits from those of one call of
/// the attention over all characters.
float generate(CharacterModel& model, const Text& text, Index prompt, Index characters) {
  States states(model);
  std::mt19937 random(2);
  std::vector<Index> all(text.tokens.begin(), text.tokens.begin() + prompt);
  Matrix<float> logits = model.logits(all, states).bottomRows(1), rows(characters, logits.cols());
  for (Index t = 0; t < characters; ++t) {
    rows.row(t) = logits;
    all.push_back(draw(logits, random));
    logits = model.logits({all.back()}, states);
  }
  for (const Index c : all) std::printf("%c", text.alphabet[static_cast<std::size_t>(c)]);
  all.pop_back();
  const Matrix<float> at_once = model.logits(all, [&](std::size_t b, auto& q, auto& k, auto& v, auto& y) {
    model.layers()[b].attention()(of_heads(q, 1), of_heads(k, 1), of_heads(v, 1), of_heads(y, 1));
  });
  return (at_once.bottomRows(characters) - rows).cwiseAbs().maxCoeff();
}

/// Characters a second by this attention, on one thread: the mean of the next 256.
template <class Attend>
double speed(CharacterModel& model, const Text& text, Attend& attend) {
  constexpr std::size_t characters = 256;
  const demo::OneThread one_thread;
  return characters / demo::processor_seconds([&] {
           for (std::size_t t = 0; t < characters; ++t) model.logits({text.tokens[t]}, attend);
         });
}

void print_speeds(CharacterModel& model, const Text& text, Index most) {
  std::printf("\non one thread:\n%9s %22s %12s %22s %12s\n", "tokens", "Decoder: tokens/s", "KiB",
              "exact softmax: tokens/s", "KiB");
  States states(model);
  Caches caches(model);
  std::vector<Index> prompt;
  for (const Index t : {1024, 8192, 65536}) {
    if (t > most) break;
    // the text again and again, in parts, so that the matrices of a part stay small
    for (Index at = states.decoders[0].tokens(0); at < t; at += static_cast<Index>(prompt.size())) {
      prompt.clear();
      for (Index i = at; i < std::min(at + 1024, t); ++i)
        prompt.push_back(text.tokens[static_cast<std::size_t>(i) % text.tokens.size()]);
      model.logits(prompt, [&](std::size_t b, auto& q, auto& k, auto& v, auto& y) {
        states.decoders[b].prefill(of_heads(q, 1), of_heads(k, 1), of_heads(v, 1), of_heads(y, 1));
        caches.append(b, k, v);
      });
    }
    std::size_t state_bytes = 0, cache_bytes = 0;
    for (const auto& decoder : states.decoders) state_bytes += decoder.bytes();
    for (const auto& head : caches.heads) cache_bytes += head.bytes();
    std::printf("%9td %22.0f %12zu %22.0f %12zu\n", t, speed(model, text, states), state_bytes / 1024,
                speed(model, text, caches), cache_bytes / 1024);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int steps = argc > 1 ? std::atoi(argv[1]) : 1000;
    Eigen::setNbThreads(1);  // the model's matrices are small; nprf divides attention over threads itself
    const Text text(std::string(NPRF_DEMO_DATA) + "/text.txt");
    CharacterModel model(static_cast<Index>(text.alphabet.size()));
    const auto start = std::chrono::steady_clock::now();
    const auto [before, after] = train(model, text, steps);
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    std::printf(
        "\n%zu characters, %d steps in %.1f s: %.3f nats a character before, %.3f after. The first 40, continued:\n\n",
        text.tokens.size(), steps, spent.count(), before, after);
    const float difference = generate(model, text, 40, 400);
    std::printf("\n\nlogits one by one and at once differ by %g\n", difference);
    print_speeds(model, text, argc > 2 ? std::atol(argv[2]) : 65536);
    return after < before && difference < 1e-2f ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "12_generate: %s\n", error.what());
    return 1;
  }
}
