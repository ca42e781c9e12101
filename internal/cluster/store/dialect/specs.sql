WITH victims AS (
  SELECT machine, victim_task AS task, signal, began, coalesce(closed, updated) AS ended FROM incidents WHERE NOT follows
), teaching AS (
  SELECT s.job, s.platform, s.signal, s.variant, s.machine, s.task, s.ts,
         CAST(s.cpu AS DOUBLE) AS cpu, CAST(s.cost AS DOUBLE) AS cost, {self} AS self,
         exp({log_weight} * ({now_hour} - floor({sample_ms} / {hour_ms}))) AS w
  FROM samples s
  ANTI JOIN victims i ON i.machine = s.machine AND i.task = s.task AND i.signal = s.signal AND s.ts >= i.began AND s.ts <= i.ended
  WHERE (s.flags & {excluded_flags}) = 0 AND s.ts <= {now}{revoked}
    AND abs(s.cpu) <= {most_cpu} AND ({sample_filter})
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
  SELECT job, platform, signal, variant, part, machine, tasks, enough, cpu, newest,
         CASE WHEN part = 'cost' THEN n ELSE self_n END AS n, CASE WHEN part = 'cost' THEN w ELSE self_w END AS w,
         CASE WHEN part = 'cost' THEN w2 ELSE self_w2 END AS w2, CASE WHEN part = 'cost' THEN mean ELSE self_mean END AS mean,
         CASE WHEN part = 'cost' THEN m2 ELSE self_m2 END AS m2
  FROM machines CROSS JOIN (VALUES ('cost'), ('self')) AS p(part) WHERE part = 'cost' OR self_n > 0
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
  SELECT job, platform, signal, variant,
         sum(counts) FILTER (WHERE part = 'cost') AS machines, sum(1 - counts) FILTER (WHERE part = 'cost') AS machines_out,
         sum(CASE WHEN enough > 0 THEN counts ELSE 0 END) FILTER (WHERE part = 'cost') AS full_machines,
         sum(counts * tasks) FILTER (WHERE part = 'cost') AS tasks, sum(counts * enough) FILTER (WHERE part = 'cost') AS enough,
         max(newest) FILTER (WHERE part = 'cost') AS newest, sum(counts * w * share * cpu) FILTER (WHERE part = 'cost') AS wu,
         sum(counts * n) FILTER (WHERE part = 'cost') AS n, sum(counts * w * share) FILTER (WHERE part = 'cost') AS w,
         sum(counts * w2 * share * share) FILTER (WHERE part = 'cost') AS w2, sum(counts * w * share * mean) FILTER (WHERE part = 'cost') AS wc,
         sum(counts * m2 * share) FILTER (WHERE part = 'cost') AS inner_m2, sum(counts * w * share * mean * mean) FILTER (WHERE part = 'cost') AS wcc,
         sum(counts * n) FILTER (WHERE part = 'self') AS self_n, sum(counts * w * share) FILTER (WHERE part = 'self') AS self_w,
         sum(counts * w2 * share * share) FILTER (WHERE part = 'self') AS self_w2, sum(counts * w * share * mean) FILTER (WHERE part = 'self') AS self_wc,
         sum(counts * m2 * share) FILTER (WHERE part = 'self') AS self_inner_m2, sum(counts * w * share * mean * mean) FILTER (WHERE part = 'self') AS self_wcc
  FROM kept GROUP BY job, platform, signal, variant
)
SELECT job, platform, signal, variant,
       CASE WHEN tasks < {min_tasks} OR machines < {min_machines} THEN 'insufficient'
            WHEN enough < {min_tasks} OR full_machines < {min_machines} THEN 'learning'
            WHEN {now_ms} - {newest_ms} > {stale_ms} THEN 'stale'
            ELSE 'ready' END AS state,
       CAST(enough AS BIGINT) AS tasks, CAST(n AS BIGINT) AS num_samples, wu / w AS cpu_usage_mean, wc / w AS cost_mean,
       CASE WHEN n < 2 OR w - w2 / w <= 0 THEN 0e0
            ELSE sqrt(greatest(inner_m2 + wcc - wc * wc / w, 0e0) / (w - w2 / w)) END AS cost_stddev,
       {newest_ms} AS newest_sample, CAST(machines AS BIGINT) AS machines, CAST(machines_out AS BIGINT) AS machines_out,
       CAST(CASE WHEN self_n >= {min_samples} THEN self_n ELSE 0 END AS BIGINT) AS self_samples,
       CASE WHEN self_n >= {min_samples} THEN self_wc / self_w ELSE 0e0 END AS self_mean,
       CASE WHEN self_n >= {min_samples} AND self_w - self_w2 / self_w > 0
            THEN sqrt(greatest(self_inner_m2 + self_wcc - self_wc * self_wc / self_w, 0e0) / (self_w - self_w2 / self_w)) ELSE 0e0 END AS self_stddev
FROM keys ORDER BY job, platform, signal, variant
