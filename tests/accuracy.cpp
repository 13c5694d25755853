// SPDX-License-Identifier: MIT
//
// Prints how far each engine is from the formula in long double, over n, as the tables of tests/accuracy.md.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <iomanip>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "nprf/nprf.hpp"
#include "support/attention.hpp"

namespace {

using namespace nprf;
using namespace nprf::test;

constexpr Index d = 16, m = 16, d_v = 4;

struct Errors {
  double engine;  // root mean square over that of y, for the features that attention has
  double all;     // of the worst row, features and all, over the largest |v|: what the bound is of
  double bound;
};

// phi(x) (n,m) in long double, of rows scaled to norm 1
template <Real T>
Matrix<long double> exact_features(const PositiveFeatures<T>& features, const Matrix<T>& x) {
  Matrix<long double> unit = x.template cast<long double>();
  unit.rowwise().normalize();
  const Matrix<long double> W = features.projection().template cast<long double>();
  return ((unit * W.transpose()).array() - 0.5L).exp();
}

// the formula's row i (1,d_v) for features a of its query and B (n,m) of all keys
template <Real T>
Matrix<long double> row(Index i, const auto& a, const auto& B, const Matrix<T>& v, const PositionView<T>& position,
                        Direction direction) {
  Matrix<long double> y = Matrix<long double>::Zero(1, v.cols());
  long double D = 0;
  const Index end = direction == Direction::causal ? i + 1 : v.rows();
  for (Index j = 0; j < end; ++j) {
    const long double w = a.dot(B.row(j).template cast<long double>()) *
                          std::exp(static_cast<long double>(position.bias_between(i, j, 0)));
    y += w * v.row(j).template cast<long double>();
    D += w;
  }
  return y / D;
}

template <Real T>
Errors errors(const auto& place, Index n, Direction direction, Engine engine) {
  const Tokens<T> x = random_tokens<T>(n, n, d, d_v);
  const Attention attention(orf<T>(d, m, 7), place, {.direction = direction, .engine = engine});
  Report report;
  const Matrix<T> y = attention(x.q, x.k, x.v, {.report = &report});
  const PositionView<T> position(place);
  const Matrix<T> A = attention.query_features(x.q), B = attention.key_features(x.k);
  const std::vector<Index> rows = some_rows(n, 32);
  const auto A_exact = exact_features(attention.features(), pick(x.q, rows)),
             B_exact = exact_features(attention.features(), x.k);
  long double squares = 0, size = 0, worst = 0;
  for (Index s = 0; s < A_exact.rows(); ++s) {
    const Index i = rows[static_cast<std::size_t>(s)];
    const Matrix<long double> got = y.row(i).template cast<long double>();
    const auto with = row<T>(i, A.row(i).template cast<long double>().eval(), B, x.v, position, direction);
    squares += (got - with).squaredNorm();
    size += with.squaredNorm();
    worst = std::max(worst, (got - row<T>(i, A_exact.row(s), B_exact, x.v, position, direction)).cwiseAbs().maxCoeff());
  }
  return {static_cast<double>(std::sqrt(squares / size)),
          static_cast<double>(worst / static_cast<long double>(x.v.cwiseAbs().maxCoeff())), report.error_bound};
}

template <Real T>
struct Contender {
  const char* name;
  Index most;  // beyond this n it would take hours
  std::function<Errors(Index n)> errors;
};

template <Real T>
std::vector<Contender<T>> contenders() {
  constexpr Index all = Index{1} << 20;
  const auto table = [](Engine engine, Direction direction) {
    return [=](Index n) { return errors<T>(RelativePosition<T>(random_table<T>(n, 3)), n, direction, engine); };
  };
  std::vector<Contender<T>> list{
      {"direct", 1 << 14, table(Engine::direct, Direction::bidirectional)},
      {"banded, T5", all,
       [](Index n) {
         const T5Position<T> t5(normal_vector<T>(32, 5), Direction::bidirectional);
         return errors<T>(t5, n, Direction::bidirectional, Engine::banded);
       }},
      {"recurrence, ALiBi", all,
       [](Index n) { return errors<T>(AlibiPosition<T>(T(0.0625)), n, Direction::bidirectional, Engine::banded); }},
      {"lanes", all, table(Engine::lanes, Direction::bidirectional)},
      {"grid", all,
       [](Index n) {
         const Index side = static_cast<Index>(std::sqrt(static_cast<double>(n))), other = n / side;
         return errors<T>(GridPosition<T>(side, other, normal<T>(2 * side - 1, 2 * other - 1, 3)), n,
                          Direction::bidirectional, Engine::grid);
       }},
      {"block_causal", all, table(Engine::block_causal, Direction::causal)}};
  if (NPRF_USE_FFTW) list.push_back({"fftw", all, table(Engine::fftw, Direction::bidirectional)});
  return list;
}

std::string scientific(double x) {
  std::ostringstream out;
  out << std::setprecision(1) << std::scientific << x;
  return out.str();
}

using Row = std::vector<std::string>;

void print(const Row& row) {
  std::cout << "|";
  for (const std::string& cell : row) std::cout << " " << cell << " |";
  std::cout << std::endl;
}

template <Real T>
void print_tables(const char* scalar, int last) {
  const std::vector<Contender<T>> list = contenders<T>();
  Row head{"n", "eps sqrt(log2 n)"}, rule{"---", "---"};
  for (const Contender<T>& one : list) head.push_back(one.name), rule.push_back("---");
  std::cout << "\n" << scalar << ", of the product alone\n\n";
  print(head), print(rule);
  std::vector<Row> with_features;
  for (int log_n = 6; log_n <= last; log_n += 2) {
    const Index n = Index{1} << log_n;
    const std::string name = "2^" + std::to_string(log_n);
    Row product{name, scientific(epsilon<T> * std::sqrt(static_cast<double>(log_n)))},
        &all = with_features.emplace_back();
    all = {name};
    for (const Contender<T>& one : list) {
      const Errors e = n <= one.most ? one.errors(n) : Errors{};
      product.push_back(n <= one.most ? scientific(e.engine) : "");
      all.push_back(n <= one.most ? scientific(e.all) + " < " + scientific(e.bound) : "");
    }
    print(product);
  }
  std::cout << "\n" << scalar << ", of the worst row, features and all, and its bound\n\n";
  head.erase(head.begin() + 1), rule.pop_back();
  print(head), print(rule);
  for (const Row& row : with_features) print(row);
}

}  // namespace

int main(int argc, char** argv) {
  const int last = argc > 1 ? std::atoi(argv[1]) : 20;
  print_tables<float>("float", last);
  print_tables<double>("double", last);
}
