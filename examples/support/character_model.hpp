// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <nprf/nprf.hpp>
#include <string>
#include <utility>
#include <vector>

/// A small language model of characters: an embedding, two layers of causal attention and of hidden units, and logits.
namespace demo {

using nprf::HeadsView;
using nprf::Index;
using nprf::Matrix;
using nprf::Vector;

/// A matrix that is trained by Adam (Kingma and Ba 2015), from N(0,1) / sqrt(rows) on.
class Parameter {
 public:
  Parameter(Index rows, Index cols, std::uint64_t seed, float rate = 0.003f)
      : value(nprf::NormalDeviates(seed).matrix(rows, cols).cast<float>() / std::sqrt(static_cast<float>(rows))),
        m_rate(rate) {}

  void learn(const Matrix<float>& gradient) {
    if (m_steps == 0) m_mean = m_square = 0 * value;
    ++m_steps;
    m_mean += 0.1f * (gradient - m_mean);
    m_square += 0.01f * (gradient.cwiseAbs2() - m_square);
    const float of_mean = 1 - std::pow(0.9f, m_steps), of_square = 1 - std::pow(0.99f, m_steps);
    value.array() -= m_rate * (m_mean.array() / of_mean) / ((m_square.array() / of_square).sqrt() + 1e-8f);
  }

  Matrix<float> value;

 private:
  Matrix<float> m_mean, m_square;  // of the gradients so far
  float m_rate, m_steps = 0;
};

/// h = x + attention(x W_q, x W_k, x W_v) W_o, then h + max(h W_1, 0) W_2. A row is a token; rows are those of one
/// sequence after the other. T5's biases are learned for each head.
class Layer {
 public:
  static constexpr Index heads = 4, head_dim = 16, width = heads * head_dim, hidden = 4 * width, buckets = 32, m = 32;
  using Attention = nprf::MultiHeadAttention<nprf::PositiveFeatures<float>, nprf::T5Position<float>>;

  explicit Layer(std::uint64_t seed)
      : m_features(nprf::orf<float>(head_dim, m, seed)),
        m_W_q(width, width, seed + 1),
        m_W_k(width, width, seed + 2),
        m_W_v(width, width, seed + 3),
        m_W_o(width, width, seed + 4),
        m_W_1(width, hidden, seed + 5),
        m_W_2(hidden, width, seed + 6),
        m_b(buckets, heads, seed + 7, 0.03f) {}

  /// T5's biases as they are now, of each head, and the attention with them.
  std::vector<nprf::T5Position<float>> positions() const {
    std::vector<nprf::T5Position<float>> all;
    for (Index h = 0; h < heads; ++h) all.emplace_back(m_b.value.col(h), nprf::Direction::causal);
    return all;
  }
  Attention attention() const {
    return {m_features, positions(), {.direction = nprf::Direction::causal, .normalization = normalization()}};
  }
  static nprf::Normalization normalization() { return nprf::Normalization::unit(2); }

  /// x (n,width) -> (n,width), where attend(q, k, v, y) computes y. All of them are (n,width).
  template <class Attend>
  Matrix<float> forward(const Matrix<float>& x, Attend&& attend) {
    m_x = x;
    m_q = x * m_W_q.value, m_k = x * m_W_k.value, m_v = x * m_W_v.value;  // (n,width)
    m_y.resize(x.rows(), width);
    attend(m_q, m_k, m_v, m_y);
    m_h = x + m_y * m_W_o.value;            // (n,width)
    m_r = (m_h * m_W_1.value).cwiseMax(0);  // (n,hidden)
    return m_h + m_r * m_W_2.value;
  }

  /// The gradient dx (n,width) for that of forward's result, where attend_backward(dy, dq, dk, dv, db) computes all but
  /// the first, and db is (buckets,heads). Then the parameters take a step.
  template <class AttendBackward>
  Matrix<float> backward(const Matrix<float>& dz, AttendBackward&& attend_backward) {
    const Matrix<float> dr = (m_r.array() > 0).select(dz * m_W_2.value.transpose(), 0);  // (n,hidden)
    const Matrix<float> dh = dz + dr * m_W_1.value.transpose(), dy = dh * m_W_o.value.transpose();
    Matrix<float> dq(dy.rows(), width), dk = dq, dv = dq, db(buckets, heads);
    attend_backward(dy, dq, dk, dv, db);
    const Matrix<float> dx =
        dh + dq * m_W_q.value.transpose() + dk * m_W_k.value.transpose() + dv * m_W_v.value.transpose();
    m_W_2.learn(m_r.transpose() * dz), m_W_1.learn(m_h.transpose() * dr), m_W_o.learn(m_y.transpose() * dh);
    m_W_q.learn(m_x.transpose() * dq), m_W_k.learn(m_x.transpose() * dk), m_W_v.learn(m_x.transpose() * dv);
    m_b.learn(db);
    return dx;
  }

 private:
  nprf::PositiveFeatures<float> m_features;
  Parameter m_W_q, m_W_k, m_W_v, m_W_o, m_W_1, m_W_2, m_b;
  Matrix<float> m_x, m_q, m_k, m_v, m_y, m_h, m_r;  // of the last forward
};

/// The characters of a text as numbers, and the text as these.
struct Text {
  explicit Text(const std::string& path) {
    std::ifstream in(path);
    const std::string all{std::istreambuf_iterator<char>(in), {}};
    nprf::require(!all.empty(), path, ": expected a text");
    alphabet = all;
    std::sort(alphabet.begin(), alphabet.end());
    alphabet.erase(std::unique(alphabet.begin(), alphabet.end()), alphabet.end());
    for (const char c : all) tokens.push_back(static_cast<Index>(alphabet.find(c)));
  }

  std::string alphabet;
  std::vector<Index> tokens;
};

/// What a text's next characters are, by the characters before them.
class CharacterModel {
 public:
  explicit CharacterModel(Index characters)
      : m_E(characters, Layer::width, 1), m_W(Layer::width, characters, 2), m_layers{Layer(100), Layer(200)} {
    m_E.value *= std::sqrt(static_cast<float>(characters));  // rows of N(0,1)
  }

  std::vector<Layer>& layers() { return m_layers; }

  /// The logits (n,characters) of the characters that follow each of n; attend(layer, q, k, v, y) is the attention.
  template <class Attend>
  Matrix<float> logits(const std::vector<Index>& characters, Attend&& attend) {
    m_characters = characters;
    Matrix<float> x = m_E.value(characters, Eigen::all);  // (n,width)
    for (std::size_t b = 0; b < m_layers.size(); ++b)
      x = m_layers[b].forward(x, [&](auto&... matrices) { attend(b, matrices...); });
    m_last = x;
    return x * m_W.value;
  }

  /// One step of training, for the gradient of the logits.
  template <class AttendBackward>
  void learn(const Matrix<float>& dlogits, AttendBackward&& attend_backward) {
    Matrix<float> dx = dlogits * m_W.value.transpose(), dE = 0 * m_E.value;
    m_W.learn(m_last.transpose() * dlogits);
    for (std::size_t b = m_layers.size(); b-- > 0;)
      dx = m_layers[b].backward(dx, [&](auto&... matrices) { attend_backward(b, matrices...); });
    for (std::size_t i = 0; i < m_characters.size(); ++i) dE.row(m_characters[i]) += dx.row(static_cast<Index>(i));
    m_E.learn(dE);
  }

 private:
  Parameter m_E, m_W;  // (characters,width) (width,characters)
  std::vector<Layer> m_layers;
  std::vector<Index> m_characters;  // of the last logits
  Matrix<float> m_last;
};

/// Rows of matrices as [batch, tokens, heads, channels].
inline HeadsView<float> of_heads(Matrix<float>& x, Index batch) {
  return nprf::tokens_first(x.data(), batch, x.rows() / batch, Layer::heads, Layer::head_dim);
}
inline HeadsView<const float> of_heads(const Matrix<float>& x, Index batch) {
  return nprf::tokens_first(x.data(), batch, x.rows() / batch, Layer::heads, Layer::head_dim);
}

/// One step of training on `batch` sequences of n characters, of which each is to be predicted from those before it.
/// Returns the mean negative log-likelihood of a character.
inline float train_step(CharacterModel& model, const std::vector<Index>& in, const std::vector<Index>& next,
                        Index batch) {
  std::vector<Layer::Attention> attentions;
  for (const Layer& layer : model.layers()) attentions.push_back(layer.attention());
  std::vector<nprf::Saved<float>> saved(attentions.size());
  Matrix<float> p = model.logits(in, [&](std::size_t b, const auto& q, const auto& k, const auto& v, auto& y) {
    attentions[b].forward(of_heads(q, batch), of_heads(k, batch), of_heads(v, batch), of_heads(y, batch), saved[b]);
  });

  // loss = -mean_i log softmax(logits_i)[next_i], so dlogits = (softmax - one-hot) / n
  float loss = 0;
  for (Index i = 0; i < p.rows(); ++i) {
    p.row(i) = (p.row(i).array() - p.row(i).maxCoeff()).exp();
    p.row(i) /= p.row(i).sum();
    loss -= std::log(p(i, next[static_cast<std::size_t>(i)]));
    p(i, next[static_cast<std::size_t>(i)]) -= 1;
  }
  const float n = static_cast<float>(p.rows());
  model.learn(p / n, [&](std::size_t b, const auto& dy, auto& dq, auto& dk, auto& dv, auto& db) {
    std::vector<Matrix<float>> of_head;  // each (buckets,1)
    attentions[b].backward(saved[b], of_heads(dy, batch), of_heads(dq, batch), of_heads(dk, batch), of_heads(dv, batch),
                           of_head);
    for (Index h = 0; h < db.cols(); ++h) db.col(h) = of_head[static_cast<std::size_t>(h)];
  });
  return loss / n;
}

}  // namespace demo
