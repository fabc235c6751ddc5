// Two binary trees over the same ranks in which no rank but the root has children in both: index arithmetic only.
// (Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009.)
//
// Ranks are places, counted from the root, which is place 0. The others are the nodes 1 .. n - 1 of an in-order binary
// tree: the lowest set bit of a node is the distance to the ends of its subtree, so odd nodes are leaves. The root has
// one child in each tree, the top node. In the second tree the places are shifted by one or mirrored, whichever gives a
// place with an even node in the first tree an odd one in the second.
#pragma once

#include "device/host_device.h"

namespace kolo::algorithms {

// Thread safety: immutable.
class TwoTrees {
 public:
  // REQUIRES: n > 1.
  KOLO_DEVICE explicit TwoTrees(int n) : nodes_(n - 1) {}

  // REQUIRES: place > 0.
  KOLO_DEVICE int parent(int tree, int place) const {
    const int node = nodeAt(tree, place), bit = node & -node;
    const int above = (node ^ bit) | (bit << 1);
    return placeOf(tree, above <= nodes_ ? above : node ^ bit);
  }

  // At most two.
  template <class Visit>
  KOLO_DEVICE void eachChild(int tree, int place, Visit visit) const {
    if (place == 0) {
      visit(placeOf(tree, top()));
      return;
    }
    const int node = nodeAt(tree, place);
    int distance = (node & -node) >> 1;
    if (distance == 0) return;
    visit(placeOf(tree, node - distance));
    // The subtree above the node may be cut off by the last node.
    while (distance != 0 && node + distance > nodes_) distance >>= 1;
    if (distance != 0) visit(placeOf(tree, node + distance));
  }

  // Ranks in the subtree below a place, itself included.
  KOLO_DEVICE int subtreeOf(int tree, int place) const {
    if (place == 0) return nodes_ + 1;
    const int node = nodeAt(tree, place), bit = node & -node;
    const int last = node + bit - 1 < nodes_ ? node + bit - 1 : nodes_;
    return last - (node - bit);
  }

 private:
  KOLO_DEVICE int top() const {
    int bit = 1;
    while (bit * 2 <= nodes_) bit *= 2;
    return bit;
  }
  KOLO_DEVICE bool isShifted() const { return nodes_ % 2 == 1; }  // else the second tree is mirrored
  KOLO_DEVICE int nodeAt(int tree, int place) const {
    if (tree == 0 || place == 0) return place;
    if (!isShifted()) return nodes_ + 1 - place;
    return place == nodes_ ? 1 : place + 1;
  }
  KOLO_DEVICE int placeOf(int tree, int node) const {
    if (tree == 0 || node == 0) return node;
    if (!isShifted()) return nodes_ + 1 - node;
    return node == 1 ? nodes_ : node - 1;
  }

  int nodes_;
};

}  // namespace kolo::algorithms
