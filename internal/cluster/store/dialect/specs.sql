WITH victims AS (
  SELECT machine, victim_task AS task, signal, began, coalesce(closed, updated) AS ended FROM incidents WHERE NOT follows
), teaching AS (
  SELECT s.job, s.platform, s.signal, s.variant, s.machine, s.task, s.ts,
         CAST(s.cpu AS DOUBLE) AS cpu, CAST(s.cost AS DOUBLE) AS cost, {self} AS self,
         exp({log_weight} * ({now_hour} - floor({sample_ms} / {hour_ms}))) AS w
  FROM samples s
  ANTI JOIN victims i ON i.machine = s.machine AND i.task = s.task AND i.signal = s.signal AND s.ts >= i.began AND s.ts <= i.ended
  WHERE (s.flags & {excluded_flags}) = 0 AND s.ts <= {now}{revoked}
    AND ({sample_filter})
), tasks AS (
  SELECT job, platform, signal, variant, machine, count(*) AS n, sum(w) AS sw, sum(w * w) AS sw2,
         sum(w * cpu) AS swu, sum(w * cost) AS swc, sum(w * cost * cost) AS swcc, max(ts) AS newest,
         count(self) AS self_n, sum(CASE WHEN self IS NOT NULL THEN w END) AS self_w, sum(CASE WHEN self IS NOT NULL THEN w * w END) AS self_w2,
         sum(w * self) AS self_ws, sum(w * self * self) AS self_wss
  FROM teaching GROUP BY job, platform, signal, variant, machine, task
), machines AS (
  SELECT job, platform, signal, variant, machine, count(*) AS tasks, count(*) FILTER (WHERE n >= {min_samples}) AS enough,
         sum(n) AS n, sum(sw) AS w, sum(sw2) AS w2, sum(swu) / sum(sw) AS cpu, sum(swc) / sum(sw) AS mean,
         greatest(sum(greatest(swcc - swc * swc / sw, 0e0)) + sum(swc * swc / sw) - sum(swc) * sum(swc) / sum(sw), 0e0) AS m2,
         max(newest) AS newest,
         sum(self_n) AS self_n, sum(self_w) AS self_w, sum(self_w2) AS self_w2, sum(self_ws) / sum(self_w) AS self_mean,
         greatest(sum(greatest(self_wss - self_ws * self_ws / self_w, 0e0)) + sum(self_ws * self_ws / self_w) - sum(self_ws) * sum(self_ws) / sum(self_w), 0e0) AS self_m2
  FROM tasks WHERE NOT {instance} GROUP BY job, platform, signal, variant, machine
), parts AS (
  SELECT job, platform, signal, variant, 'cost' AS part, machine, tasks, enough, n, w, w2, cpu, mean, m2, newest FROM machines
  UNION ALL
  SELECT job, platform, signal, variant, 'self' AS part, machine, tasks, enough, self_n, self_w, self_w2, cpu, self_mean, self_m2, newest FROM machines WHERE self_n > 0
), votes AS (
  SELECT *, CASE WHEN enough > 0 THEN mean END AS vote, CASE WHEN enough > 0 THEN w END AS weight,
         CASE WHEN enough = 0 THEN CAST(NULL AS DOUBLE) WHEN n < 2 OR w - w2 / w <= 0 THEN 0e0 ELSE sqrt(m2 / (w - w2 / w)) END AS spread
  FROM parts
), middles AS (
  SELECT job, platform, signal, variant, part, count(vote) AS voters, median(vote) AS middle, median(spread) AS spread,
         percentile_disc(0.5) WITHIN GROUP (ORDER BY weight) AS weight
  FROM votes GROUP BY job, platform, signal, variant, part
), away AS (
  SELECT m.job, m.platform, m.signal, m.variant, m.part, m.tasks, m.enough, m.n, m.w, m.w2, m.cpu, m.mean, m.m2, m.newest,
         k.voters, k.middle, k.spread, CASE WHEN k.weight < m.w THEN k.weight / m.w ELSE 1e0 END AS share,
         abs(m.mean - k.middle) AS deviation, CASE WHEN m.enough > 0 THEN abs(m.mean - k.middle) END AS vote
  FROM votes m JOIN middles k ON k.job = m.job AND k.platform = m.platform AND k.signal = m.signal AND k.variant = m.variant AND k.part = m.part
), between_machines AS (
  SELECT job, platform, signal, variant, part, median(vote) AS mad FROM away GROUP BY job, platform, signal, variant, part
), ranked AS (
  SELECT m.*, {mad_sigma} * k.mad AS between_sigma,
         count(*) OVER (PARTITION BY m.job, m.platform, m.signal, m.variant, m.part, m.enough > 0 ORDER BY m.deviation DESC) AS place
  FROM away m JOIN between_machines k ON k.job = m.job AND k.platform = m.platform AND k.signal = m.signal AND k.variant = m.variant AND k.part = m.part
), kept AS (
  SELECT *, CASE WHEN voters >= {votes} AND deviation > greatest({fence} * (between_sigma + spread), {effect})
         AND (enough = 0 OR place <= greatest(1e0, floor(voters / {outlying_part}))) THEN 0 ELSE 1 END AS counts
  FROM ranked
), keys AS (
  SELECT job, platform, signal, variant, part, sum(counts) AS machines, sum(1 - counts) AS machines_out, sum(CASE WHEN enough > 0 THEN counts ELSE 0 END) AS full_machines,
         sum(counts * tasks) AS tasks, sum(counts * enough) AS enough, sum(counts * n) AS n,
         sum(counts * w * share) AS w, sum(counts * w2 * share * share) AS w2, sum(counts * w * share * cpu) AS wu, sum(counts * w * share * mean) AS wc,
         sum(counts * m2 * share) AS inner_m2, sum(counts * w * share * mean * mean) AS wcc, max(newest) AS newest
  FROM kept GROUP BY job, platform, signal, variant, part
)
SELECT k.job, k.platform, k.signal, k.variant,
       CASE WHEN k.tasks < {min_tasks} OR k.machines < {min_machines} THEN 'insufficient'
            WHEN k.enough < {min_tasks} OR k.full_machines < {min_machines} THEN 'learning'
            WHEN {now_ms} - {newest_ms} > {stale_ms} THEN 'stale'
            ELSE 'ready' END AS state,
       CAST(k.enough AS BIGINT) AS tasks, CAST(k.n AS BIGINT) AS num_samples, k.wu / k.w AS cpu_usage_mean, k.wc / k.w AS cost_mean,
       CASE WHEN k.n < 2 OR k.w - k.w2 / k.w <= 0 THEN 0e0
            ELSE sqrt(greatest(k.inner_m2 + k.wcc - k.wc * k.wc / k.w, 0e0) / (k.w - k.w2 / k.w)) END AS cost_stddev,
       {newest_ms} AS newest_sample, CAST(k.machines AS BIGINT) AS machines, CAST(k.machines_out AS BIGINT) AS machines_out,
       CAST(coalesce(s.n, 0) AS BIGINT) AS self_samples, coalesce(s.wc / s.w, 0e0) AS self_mean,
       CASE WHEN coalesce(s.n, 0) < 2 OR s.w - s.w2 / s.w <= 0 THEN 0e0
            ELSE sqrt(greatest(s.inner_m2 + s.wcc - s.wc * s.wc / s.w, 0e0) / (s.w - s.w2 / s.w)) END AS self_stddev
FROM keys k LEFT JOIN keys s ON s.part = 'self' AND s.n >= {min_samples} AND s.job = k.job AND s.platform = k.platform AND s.signal = k.signal AND s.variant = k.variant
WHERE k.part = 'cost' ORDER BY k.job, k.platform, k.signal, k.variant
