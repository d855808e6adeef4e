// Rows of different lengths in one flat array.
//
// In: rows one by one, or (key, value) pairs. Out: slices. Never changes a row once it is there.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace remat {

using Int = std::int64_t;  // bytes, nanoseconds, codes of loads; ops and moments are plain ints

template <class T>
class Slice {
public:
    Slice() = default;
    Slice(const T* first, const T* last) : first_(first), last_(last) {}
    Slice(const std::vector<T>& all) : Slice(all.data(), all.data() + all.size()) {}  // NOLINT: meant to convert

    const T* begin() const { return first_; }
    const T* end() const { return last_; }
    int size() const { return static_cast<int>(last_ - first_); }
    bool empty() const { return first_ == last_; }
    const T& operator[](int i) const { return first_[i]; }

private:
    const T* first_ = nullptr;
    const T* last_ = nullptr;
};

template <class T>
class Rows {
public:
    Rows() = default;

    // The values at each of the keys 0..count-1, in the order given.
    Rows(const std::vector<std::pair<int, T>>& pairs, int count) : start_(count + 1, 0), flat_(pairs.size()) {
        for (const auto& pair : pairs) ++start_[pair.first + 1];
        for (int i = 0; i < count; ++i) start_[i + 1] += start_[i];
        std::vector<int> next(start_.begin(), start_.end() - 1);
        for (const auto& pair : pairs) flat_[next[pair.first]++] = pair.second;
    }

    void reserve(int rows, int values) {
        start_.reserve(rows + 1);
        flat_.reserve(values);
    }
    void append(const T& value) { flat_.push_back(value); }
    void close() { start_.push_back(static_cast<int>(flat_.size())); }
    int size() const { return static_cast<int>(start_.size()) - 1; }
    int start(int i) const { return start_[i]; }
    Slice<T> operator[](int i) const { return {flat_.data() + start_[i], flat_.data() + start_[i + 1]}; }

private:
    std::vector<int> start_{0};
    std::vector<T> flat_;
};

}  // namespace remat
