"""Japanese texts of figures and number columns, looked up by their English phrases.

A phrase may hold `{}` for a number with its interval or for one word: "first {} digits". Longer
phrases are replaced first.
"""

from __future__ import annotations

import re
from functools import lru_cache

PLACEHOLDER = r"([^\s,;:()]+(?:,\d{3})*(?: \[[^\]]*\])?)"
PHRASES = {
    # axes and legends that several figures share
    "step": "ステップ",
    "step {}": "ステップ {}",
    "nats": "ナット",
    "nats per character": "ナット／文字",
    "nats per character, trigram model": "ナット／文字（トライグラムモデル）",
    "loss, nats": "損失（ナット）",
    "loss, nats (smoothed)": "損失（ナット、平滑化）",
    "held-out loss, nats": "検証損失（ナット）",
    "learning rate": "学習率",
    "accuracy": "正解率",
    "test accuracy": "テスト正解率",
    "share": "割合",
    "key": "キー",
    "query": "クエリ",
    "scores": "スコア",
    "weights": "重み",
    "layer": "層",
    "layers": "層数",
    "{} layers": "{}層",
    "parameters": "パラメータ数",
    "uniform guess": "一様な推測",
    "chance": "チャンスレベル",
    "measured": "測定値",
    "after training": "学習後",
    "at the start": "学習前",
    "attention": "注意機構",
    "cosine": "コサイン",
    "dot product": "内積",
    "difference {}": "差 {}",
    "largest difference {}": "最大の差 {}",
    "smallest difference {}": "最小の差 {}",
    "{} times": "{} 倍",
    "{} seeds": "シード{}個",
    "yes": "はい",
    "no": "いいえ",
    # softmax-saturation
    "variance / d_k, the one farthest from 1: {}": "分散 / d_k（1から最も遠い値）：{}",
    "variance of the scores": "スコアの分散",
    "largest weight": "最大の重み",
    "largest of {} weights": "{}個の重みの最大値",
    "entropy, nats": "エントロピー（ナット）",
    "each line: start to end of training": "各線：学習の開始から終了まで",
    "from {} to {}": "{} から {}",
    "raw / scaled": "スケーリングなし / あり",
    "d_k = {}: {}": "d_k = {}：{}",
    "largest weight {}, after training raw − scaled {}": (
        "最大の重み {}、学習後のスケーリングなし − あり {}"
    ),
    "unscaled: {}": "スケーリングなし：{}",
    "scaled: {}": "スケーリングあり：{}",
    "from the scaled start: {}": "スケーリングありの初期状態から：{}",
    "from the saturated start: {}": "飽和した初期状態から：{}",
    "variance / d_k": "分散 / d_k",
    "|∂a/∂s|, raw / scaled": "|∂a/∂s|、スケーリングなし / あり",
    "gradient at q, raw / scaled": "q での勾配、スケーリングなし / あり",
    "mean": "平均",
    "median": "中央値",
    "largest weight: start (above) and end of training": "最大の重み：学習の開始（上）と終了",
    "held-out loss, nats (each at its tuned rate)": "検証損失（ナット、それぞれ調整した学習率）",
    "q·k, start of the scaled": "q·k（スケーリングありの初期状態）",
    "q·k / √d_k, start of q·k": "q·k / √d_k（q·k の初期状態）",
    "raw − scaled": "スケーリングなし − あり",
    "with d_k = {}: {}": "d_k = {} では {}",
    # single-vs-multi-head
    "{} of {}": "{}（全体 {}）",
    "{} head": "{}ヘッド",
    "{} heads": "{}ヘッド",
    "{} head: attention targets": "{}ヘッド：注目先",
    "{} heads: attention targets": "{}ヘッド：注目先",
    "smaller of the two weights": "二つの重みの小さい方",
    "rank {} ({} head)": "階数 {}（{}ヘッド）",
    "rank {} ({} heads)": "階数 {}（{}ヘッド）",
    "{} times, fused kernel {} times": "{} 倍、融合カーネルでは {} 倍",
    "{} times, at {} tokens on one core {} times": "{} 倍、1コア・{}トークンでは {} 倍",
    "At high learning rates": "高い学習率",
    "rate {}": "学習率 {}",
    "heads": "ヘッド数",
    "share of seeds that learn": "学習に成功したシードの割合",
    "operations of the products": "行列積の演算数",
    "time, the equation": "時間、定義式",
    "time, the fused kernel": "時間、融合カーネル",
    "relative to one head": "1ヘッドとの比",
    "A layer of width {}, {} tokens": "幅 {} の注意層、{}トークン",
    "weight on the key's position": "キーが一致する位置への重み",
    "weight on the named position": "指定された位置への重み",
    # positions
    "f(xP) and f(x) differ by {} of the largest output": "f(xP) と f(x) の差は最大出力の {}",
    "within one distance they differ by {} of their range": "同じ距離の中での差は値域の {}",
    "learned": "学習した位置",
    "learned, untrained rows beyond": "学習した位置（範囲外の行は未学習）",
    "sinusoidal": "正弦波",
    "none": "なし",
    "RoPE + YaRN at test": "RoPE + 推論時 YaRN",
    "RoPE, windowed": "RoPE（ウィンドウ付き）",
    "ALiBi, windowed": "ALiBi（ウィンドウ付き）",
    "ALiBi − windowed": "ALiBi − ウィンドウ付き",
    "increase − ALiBi's: {}": "増加 − ALiBi の増加：{}",
    "T5 bias": "T5 バイアス",
    "Trained at {}, tested to {}": "長さ{}で学習、{}まで評価",
    "Change from the training length": "学習時の長さからの変化",
    "By position (dotted: training length)": "位置ごと（点線：学習時の長さ）",
    "window, characters": "窓の長さ（文字）",
    "position in the longest window": "最長の窓の中の位置",
    "nats above ALiBi": "ALiBi との差（ナット）",
    "Scores of one repeated token: diagonal stripes where only the distance matters": (
        "同じトークンの繰り返しのスコア：距離だけで決まるなら斜めの縞になる"
    ),
    # norm-placement
    "failed runs: {} of {}": "失敗した学習：{1}回中{0}回",
    "share {}": "割合 {}",
    "{} against {}": "{} と {}",
    "lower in {} of {} seeds": "シード{1}個中{0}個で低い",
    "sandwich": "サンドイッチ",
    "largest relative difference: root {}, std + ε {}, unbiased {}": (
        "相対差の最大値：√(分散 + ε) {}、std + ε {}、不偏分散 {}"
    ),
    "layers of the model": "モデルの層数",
    "At initialisation, {} layers": "初期状態、{}層",
    "Gradient of the last layer": "最終層の勾配",
    "Highest learning rate that trains: number of seeds": "学習できる最大の学習率：シード数",
    "none trains": "学習できず",
    "{}, {} layers": "{}、{}層",
    "{}, {} layers, warm-up": "{}、{}層、ウォームアップ",
    "|∂loss/∂W|": "|∂損失/∂W|",
    # post-ln-ends-better
    "Post-LN − Pre-LN: {}": "Post-LN − Pre-LN：{}",
    "{}, {} layers: {} of {}": "{0}、{1}層：{3}回中{2}回",
    "{}, {} layer: {} of {}": "{0}、{1}層：{3}回中{2}回",
    "Tuning, on pilot seeds": "学習率の調整（試行用シード）",
    "held-out loss, nats per character": "検証損失（ナット／文字）",
    "Post-LN − Pre-LN, nats per character (left: Post-LN is better)": (
        "Post-LN − Pre-LN（ナット／文字、左ほど Post-LN が良い）"
    ),
    "{}, {} layer": "{}、{}層",
    # feed-forward
    "{} wide before the third, {} after": "三つ目の行列の前の幅 {}、後の幅 {}",
    "{} at {}": "{}（学習率 {}）",
    "training loss, nats per character": "訓練損失（ナット／文字）",
    "Training, each at its tuned rate": "学習（それぞれ調整した学習率）",
    "held-out loss, nats per character (left: the first is better)": (
        "検証損失（ナット／文字、左ほど前者が良い）"
    ),
    "Differences: seeds in grey, mean, 95% interval": "差：灰色は各シード、平均と95%区間",
    # why-attention
    "layers at distance {}": "距離 {} の層数",
    "plain CNN": "通常の CNN",
    "dilated CNN": "膨張 CNN",
    "exponent": "指数",
    "exponents: fused {}, equation {}": "指数：融合カーネル {}、定義式 {}",
    "the equation": "定義式",
    "the fused kernel": "融合カーネル",
    "Recall": "想起",
    "accuracy (dotted: chance)": "正解率（点線：チャンスレベル）",
    "distance, tokens": "距離（トークン）",
    "Layers needed (LSTM, GRU: N steps in one)": "必要な層数（LSTM・GRU は1層で N ステップ）",
    "LSTM, forget bias 1": "LSTM（忘却バイアス1）",
    "of {} positions known": "{}個の位置のうち区別できる数",
    "{} of {} runs": "{1}回中{0}回",
    "forget bias 1 {}": "忘却バイアス1 {}",
    "ahead in {} of {} seeds": "{1}シード中{0}シードで上回る",
    "the logits change by {}, accuracy {}": "ロジットの変化 {}、正解率 {}",
    "the logits change by {}": "ロジットの変化 {}",
    "attention / LSTM: {} times": "注意機構 / LSTM：{} 倍",
    "{} tokens: {} of {}": "{}トークン：{}（式では {}）",
    "Training step on {} rows": "{}行の学習1ステップ",
    "tokens per row": "1行のトークン数",
    "Memory of causal attention, {} heads of {}": "因果的注意のメモリ（幅{1}のヘッド{0}個）",
    "Time, {} heads of {}": "時間（幅{1}のヘッド{0}個）",
    "peak MiB": "最大 MiB",
    "ms of CPU time": "CPU 時間（ms）",
    "tokens, N": "トークン数 N",
    # recall
    "parameters: {}": "パラメータ数：{}",
    "softmax attention": "softmax 注意",
    "window of {}": "窓{}の注意",
    "linear, elu + 1, 1 head": "線形 elu + 1、1ヘッド",
    "linear, elu + 1, 4 heads": "線形 elu + 1、4ヘッド",
    "linear, Taylor, 4 heads": "線形 Taylor、4ヘッド",
    "linear, Taylor, 8 heads": "線形 Taylor、8ヘッド",
    "LSTM, 5 times the parameters": "LSTM（パラメータ5倍）",
    "best offset {}": "最良の固定距離 {}",
    "fall:": "低下：",
    "state {} to {}: {}": "状態 {} → {}：{}",
    "inside {}, outside {}": "窓の中 {}、窓の外 {}",
    "pairs in the context": "文脈中の組の数",
    "one of the values shown": "示された値のどれか",
    "Recall by content": "内容による想起",
    "Recall by size of the state": "状態の大きさと想起",
    "numbers in the state after {} tokens": "{}トークン後の状態の数",
    "accuracy with {} pairs": "{}組での正解率",
    # kv-cache
    "{} faster at {}": "{} 高速（位置 {}）",
    "{} key heads": "KVヘッド{}個",
    "{} key head": "KVヘッド{}個",
    "{} key heads, 8 bits": "KVヘッド{}個、8ビット",
    "with the cache": "キャッシュあり",
    "full forward pass": "キャッシュなし（全体を再計算）",
    "tokens before it": "それまでのトークン数",
    "ms per token": "ms／トークン",
    "Time of the next token": "次のトークンの時間",
    "MiB after {} tokens": "{}トークン後の MiB",
    "Memory of the cache": "キャッシュのメモリ",
    # heads-look-at
    "layer {}, head {}": "第{}層 ヘッド{}",
    "{} of {}, {} (chance {}, best offset {}, best position {})": (
        "{1}組中{0}、{2}（チャンスレベル {3}、最良の固定距離 {4}、最良の固定位置 {5}）"
    ),
    "{} of {}, {} (chance {}, best offset {}, best position {}, nearest noun {}; {} of its {}"
    " errors right)": (
        "{1}組中{0}、{2}（チャンスレベル {3}、最良の固定距離 {4}、最良の固定位置 {5}、"
        "最も近い名詞 {6}、そちらの誤り{8}組のうち{7}組は正解）"
    ),
    "{} of {} pairs, {}": "{1}組中{0}、{2}",
    "{} of {} pairs; {} of {} heads resolve both classical pairs": (
        "{1}組中{0}。有名な2組の両方を解くヘッドは{3}個中{2}個"
    ),
    "{} roles": "役割 {} 種類",
    "{} previous, {} next": "直前 {}個、直後 {}個",
    "one head": "各ヘッド",
    "best offset": "最良の固定距離",
    "best position": "最良の固定位置",
    "nearest noun": "最も近い名詞",
    "chosen on other sentences, 95%": "別の文で選んだヘッド、95%区間",
    "hit rate of a head": "ヘッドの正解率",
    "log w(first) / w(second), adjective of the second noun": (
        "log w(第1の名詞) / w(第2の名詞)、第2の名詞の形容詞"
    ),
    "the same, adjective of the first noun": "同じ量、第1の名詞の形容詞",
    "From “it”: {} of {} above the line": "“it” から：{1}組中{0}組が線より上",
    "predicate adjective → subject": "述語の形容詞 → 主語",
    "noun → determiner": "名詞 → 冠詞",
    "noun → preposition": "名詞 → 前置詞",
    "verb → place": "動詞 → 場所",
    "place → verb": "場所 → 動詞",
    "word → synonym": "単語 → 同義語",
    "pronoun → referent": "代名詞 → 指示対象",
    "verb → subject": "動詞 → 主語",
    "adjective → noun": "形容詞 → 名詞",
    "noun → adjective": "名詞 → 形容詞",
    # geometry
    "(longest − shortest) / mean: {} from zero, {} from there; weights differ by {}": (
        "（最長 − 最短）/ 平均：ゼロから {}、この原点から {}。重みの差 {}"
    ),
    "direction +{}": "方向 +{}",
    "length +{}": "長さ +{}",
    "all keys +{}, with the first kept +{} nats": "全キー +{}、先頭を残すと +{} ナット",
    "from zero": "原点はゼロ",
    "from zero, first key kept": "原点はゼロ、先頭を残す",
    "from zero, without the first": "原点はゼロ、先頭を除く",
    "from zero, shuffled": "原点はゼロ、入れ替え",
    "from zero, shuffled, first key kept": "原点はゼロ、入れ替え、先頭を残す",
    "from the mean": "原点は平均",
    "from the mean, first key kept": "原点は平均、先頭を残す",
    "from the mean, without the first": "原点は平均、先頭を除く",
    "origin of the lengths": "長さの原点",
    "without differences in length": "長さの違いをなくす",
    "without differences in direction": "方向の違いをなくす",
    "additional loss, nats per token": "損失の増分（ナット／トークン）",
    "share of direction": "方向の割合",
    "share in the scores": "スコアの分散での割合",
    "length of the keys": "キーの長さ",
    "first key": "先頭のキー",
    "other keys": "他のキー",
    "mean |k|": "平均 |k|",
    "cosine − dot": "コサイン − 内積",
    "nGPT / dot {} steps to {} nats": "nGPT / 内積 {} ステップ（{} ナットまで）",
    "Each at its tuned rate": "それぞれ調整した学習率",
    "Pilots": "試行",
    "Cost of equal key lengths": "キーの長さを揃えたときの増分",
    # attention-sinks
    "first {}, the largest other {}; {} of {} heads give it more than half": (
        "先頭 {}、他の最大 {}。{3}ヘッド中{2}が半分超を置く"
    ),
    "as the first {}, inside {}": "先頭で {}、文中で {}",
    "as it is {}, with the others' direction {}": "そのまま {}、他の方向にすると {}",
    "|k| of the first / of the others {}; weight with the others' length {}": (
        "|k|：先頭 / 他 {}。他の長さにしたときの重み {}"
    ),
    "|v| of the first / of the others {}": "|v|：先頭 / 他 {}",
    "{} of {} heads give the first token more than half": (
        "{1}ヘッド中{0}が先頭のトークンに半分超を置く"
    ),
    "first token: cut": "先頭：切る",
    "first token: silenced": "先頭：寄与をゼロに",
    "first token: removed": "先頭：取り除く",
    "other token: cut": "他のトークン：切る",
    "other token: silenced": "他のトークン：寄与をゼロに",
    "weight on the first": "先頭への重み",
    "weight on the first token": "先頭のトークンへの重み",
    "Cost of each cut": "それぞれの損失の増分",
    "as it is": "そのまま",
    "with the others' length": "他の長さにする",
    "with the others' direction": "他の方向にする",
    "direction makes the sink": "シンクを作るのは方向",
    "its key and value are short": "キーとバリューは短い",
    "length of the first / of the others": "先頭の長さ / 他の長さ",
    "head": "ヘッド",
    "value": "バリュー",
    # fixed-vs-learned-kernels
    "error / error of the mean": "誤差 / 平均の誤差",
    "A kernel smoother is attention": "カーネル平滑化は注意機構",
    "data": "データ",
    "without noise": "ノイズなし",
    "attention, h = {}": "注意機構、h = {}",
    # gpt-vs-bert
    "halfway": "学習の中間時点",
    "distance to real text, BERT's better method − GPT: {}": (
        "実際の文との差、BERT の良い方 − GPT：{}"
    ),
    "GPT by search − BERT {}": "探索する GPT − BERT {}",
    "above the majority class": "最頻クラスとの差",
    "accuracy of the word's length": "語の長さの正解率",
    "masked": "マスク",
    "next": "次の文字",
    "GPT, trying every character": "GPT（全ての文字を試す）",
    "Fill and predict (lower is better)": "穴埋めと予測（低いほど良い）",
    "Generated text": "生成した文",
    "real text": "実際の文",
    "BERT,\nmask at the end": "BERT、\n末尾にマスク",
    "BERT,\nsweeps": "BERT、\n反復サンプリング",
    "word's length\nfrom its first letter": "最初の文字から\n語の長さ",
    "play from\na passage": "一節から\n戯曲",
    "majority class": "最頻クラス",
    "Embeddings, by a linear probe": "埋め込み（線形プローブ）",
    # icl-gradient-descent
    "error / error of one step: {}": "誤差 / 1ステップの誤差：{}",
    "error / error of ridge: {}": "誤差 / リッジ回帰の誤差：{}",
    "trained Transformer": "学習した Transformer",
    "ridge, best λ": "リッジ回帰、最良の λ",
    "least squares": "最小二乗法",
    "{} gradient step": "勾配降下{}ステップ",
    "{} gradient steps": "勾配降下{}ステップ",
    "examples in the context": "文脈中の例の数",
    "mean (ŷ − w·x)²": "平均 (ŷ − w·x)²",
    "In-context regression, d = {}": "文脈内回帰、d = {}",
    "layers = steps": "層数 = ステップ数",
    "largest difference / largest prediction": "最大の差 / 最大の予測値",
    "Linear attention against gradient descent": "線形注意と勾配降下",
    # induction-heads
    "score": "スコア",
    "share of the fall {}, starting at": "低下の割合 {}、開始時点は学習の",
    " of the training": "",
    "{} of the training after the start of the change": "変化の開始から学習の {} 後",
    "{} before, {} after": "前 {}、後 {}",
    "{} nats higher": "{} ナット高い",
    "{} heads of {} models": "モデル{1}個のヘッド{0}個",
    "{} nats uncut, {} with the previous tokens hidden": (
        "そのままで {} ナット、一つ前のトークンを隠して {}"
    ),
    "by {} nats": "{} ナット",
    "one layer": "1層",
    "two layers": "2層",
    "Loss on the last eight tokens": "最後の8トークンの損失",
    "Induction score of the best head": "最良のヘッドの誘導スコア",
    "In-context score: late − early loss": "文脈内学習スコア：後半 − 前半の損失",
    "share of attention": "注意の割合",
    "Layer {}, head {}: {} random tokens, repeated": (
        "第{}層 ヘッド{}：ランダムな{}トークンの繰り返し"
    ),
    # grokking
    "not reached by all runs": "達しなかった学習がある",
    "with − without {}": "あり − なし {}",
    "training sums memorised without decay": "減衰なしでの訓練データの暗記",
    "at the start {}, in noise {}": "学習前 {}、乱数 {}",
    "change {}": "変化 {}",
    "{} strongest\nonly": "強い{}個\nのみ",
    "all others\nonly": "それ以外\nのみ",
    "all": "すべて",
    "Frequencies removed": "周波数を除いた場合",
    "Spectrum of the embedding": "埋め込みのスペクトル",
    "With weight decay": "重み減衰あり",
    "Without": "重み減衰なし",
    "accuracy, or share of power": "正解率、またはパワーの割合",
    "frequency k": "周波数 k",
    "key frequencies": "主要な周波数",
    "share of the embedding's power": "埋め込みのパワーの割合",
    "test sums": "テストデータ",
    "training sums": "訓練データ",
    # emergence
    "{} of the way": "{}（推測から確信までの割合）",
    "exact − p^8: {}": "完全一致 − p^8：{}",
    "Per digit": "桁ごと",
    "All {} digits": "全{}桁",
    "All seeds and times": "全てのシードと時点",
    "Scored on fewer digits": "採点する桁を減らした場合",
    "first digit": "最初の1桁",
    "first {} digits": "最初の{}桁",
    "log-likelihood": "対数尤度",
    "log-likelihood per digit, nats": "桁ごとの対数尤度（ナット）",
    "share of exact answers": "完全一致の割合",
    # scaling-laws
    "{} runs": "学習{}回",
    "Kaplan's form": "Kaplan の形",
    "width {}: predicted {}, measured / predicted {}": "幅 {}：予測 {}、測定 / 予測 {}",
    "width {}": "幅 {}",
    "{} above the lowest": "最小値からの超過 {}",
    "training characters, D": "学習した文字数 D",
    "Loss against data": "データ量と損失",
    "parameters without embeddings, N": "埋め込みを除くパラメータ数 N",
    "Loss at equal compute": "同じ計算量での損失",
    ", held out": "、検証用",
    "measured loss, nats": "測定した損失（ナット）",
    "predicted above measured, %": "予測 − 測定（%）",
    "Prediction errors": "予測誤差",
    "training compute, FLOP": "学習の計算量（FLOP）",
    "tokens per parameter, D/N": "パラメータあたりのトークン数 D/N",
    "Tokens per parameter by the published laws": "公表された法則のトークン数/パラメータ",
    "published in 2022": "2022年の公表値",
    "refitted in 2024": "2024年の再当てはめ",
    "our fit to the published points, 95%": "公表された点への当てはめ、95%区間",
    "Chinchilla: 70 billion, 1.4 trillion tokens": "Chinchilla：700億パラメータ、1.4兆トークン",
}


def to_japanese(text: str) -> str:
    """The text in Japanese; phrases without an entry stay as they are."""
    for pattern, japanese in patterns():
        text = pattern.sub(lambda match, words=japanese: words.format(*match.groups()), text)
    return text


@lru_cache(maxsize=1)
def patterns() -> list[tuple[re.Pattern[str], str]]:
    """Each phrase as a regular expression on whole words, the longest first."""
    return [
        (phrase_pattern(english), PHRASES[english])
        for english in sorted(PHRASES, key=len, reverse=True)
    ]


def phrase_pattern(english: str) -> re.Pattern[str]:
    body = PLACEHOLDER.join(re.escape(piece) for piece in english.split("{}"))
    start = r"(?<![A-Za-z-])" if english[0].isalnum() else ""
    end = r"(?![A-Za-z-])" if english[-1].isalnum() else ""
    return re.compile(start + body + end)
