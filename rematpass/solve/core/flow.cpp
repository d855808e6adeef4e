#include "flow.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace remat {

namespace {

class Dinic {
public:
    Dinic(int nodes, const std::vector<Arc>& arcs, int source, int sink) : source_(source), sink_(sink), level_(nodes) {
        std::vector<std::pair<int, int>> edges;  // edge 2k is arc k, edge 2k + 1 its reverse
        for (std::size_t k = 0; k < arcs.size(); ++k) {
            const int edge = static_cast<int>(2 * k);
            head_.push_back(arcs[k].head);
            head_.push_back(arcs[k].tail);
            left_.push_back(arcs[k].capacity);
            left_.push_back(0);
            edges.emplace_back(arcs[k].tail, edge);
            edges.emplace_back(arcs[k].head, edge + 1);
        }
        edges_ = Rows<int>(edges, nodes);
    }

    Flow run() {
        Flow flow = 0;
        while (find_levels()) flow += block();
        return flow;
    }

    // Nodes that the source reaches over edges with capacity left.
    std::vector<char> side() const {
        std::vector<char> found;
        for (int level : level_) found.push_back(level >= 0);
        return found;
    }

    std::vector<Int> take_left() { return std::move(left_); }

private:
    // By breadth; whether the sink was reached.
    bool find_levels() {
        std::fill(level_.begin(), level_.end(), -1);
        level_[source_] = 0;
        queue_.assign(1, source_);
        for (std::size_t k = 0; k < queue_.size(); ++k) {
            const int node = queue_[k];
            for (int edge : edges_[node]) {
                const int to = head_[edge];
                if (!left_[edge] || level_[to] >= 0) continue;
                level_[to] = level_[node] + 1;
                queue_.push_back(to);
            }
        }
        return level_[sink_] >= 0;
    }

    // Push along shortest paths until none is left.
    Flow block() {
        next_.assign(level_.size(), 0);
        path_.clear();
        Flow flow = 0;
        int node = source_;
        while (true) {
            if (node == sink_) {
                flow += push(node);
            } else if (!advance(node)) {
                if (path_.empty()) return flow;
                level_[node] = -2;  // a dead end
                node = head_[path_.back() ^ 1];
                path_.pop_back();
            }
        }
    }

    bool advance(int& node) {
        const Slice<int> edges = edges_[node];
        for (int& k = next_[node]; k < edges.size(); ++k) {
            const int to = head_[edges[k]];
            if (!left_[edges[k]] || level_[to] != level_[node] + 1) continue;
            path_.push_back(edges[k]);
            node = to;
            return true;
        }
        return false;
    }

    // What the path can take; back to the tail of the first edge that is full now.
    Int push(int& node) {
        Int most = std::numeric_limits<Int>::max();
        for (int edge : path_) most = std::min(most, left_[edge]);
        std::size_t full = path_.size();
        for (std::size_t k = path_.size(); k-- > 0;) {
            left_[path_[k]] -= most;
            left_[path_[k] ^ 1] += most;
            if (!left_[path_[k]]) full = k;
        }
        node = head_[path_[full] ^ 1];
        path_.resize(full);
        return most;
    }

    const int source_, sink_;
    Rows<int> edges_;
    std::vector<int> head_, level_, next_, queue_, path_;
    std::vector<Int> left_;
};

}  // namespace

void certify_cut(const std::vector<Arc>& arcs, const std::vector<char>& side, int sink, Flow flow) {
    Flow cut = 0;
    for (const Arc& arc : arcs) cut += side[arc.tail] && !side[arc.head] ? arc.capacity : 0;
    if (side[sink] || cut != flow) throw Unsolvable{"flow and cut differ"};
}

Cut minimum_cut(int nodes, const std::vector<Arc>& arcs, int source, int sink) {
    Dinic dinic(nodes, arcs, source, sink);
    Cut cut;
    cut.flow = dinic.run();
    cut.side = dinic.side();
    cut.left = dinic.take_left();
    certify_cut(arcs, cut.side, sink, cut.flow);
    return cut;
}

}  // namespace remat
