#pragma once
/// Front door: what is decided from a whole row or batch before the loss. Each pre-pass fills weights and masks of a batch, with a
/// named reach; the loss reads them and does not know who wrote them.
///
///   gdpo::PrepassMemory<float> memory;
///   auto prepared = gdpo::prepare(batch, memory, gdpo::prepass::Overlong{truncated}, gdpo::prepass::TopEntropy{0.8});
///   loss(prepared, gdpo::count(prepared), grad);
#include <gdpo/prepass/drop_rows.hpp>
#include <gdpo/prepass/gate.hpp>
#include <gdpo/prepass/importance.hpp>
#include <gdpo/prepass/prepare.hpp>
#include <gdpo/prepass/top_entropy.hpp>
